package mutate

import (
	"cmp"
	_ "embed"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

//go:embed runtime.go.txt
var runtimeText string

// instrumented is a package with all its mutants.
type instrumented struct {
	mutants []Mutant
	files   map[string]string // the text of each file with the switches of its mutants
}

// visitor finds the mutants of a file.
type visitor struct {
	s           *source
	file        string
	edits       edits
	base        token.Pos
	next        int
	skip        func(*Mutant) bool
	mutants     []Mutant
	inFunc      string
	counts      map[string]int
	besideError map[ast.Node]bool // results returned together with a non-nil error
}

// instrument adds the mutants to the package's code. It omits mutants for which skip returns true.
func instrument(s *source, skip func(*Mutant) bool) *instrumented {
	out := &instrumented{files: map[string]string{"mutate_runtime.go": strings.Replace(runtimeText, "PACKAGE", s.name, 1)}}
	next := 1
	for _, f := range s.files {
		name := s.fset.Position(f.Pos()).Filename
		text, ok := s.text[name]
		if !ok {
			continue
		}
		v := &visitor{
			s: s, file: name, edits: edits{text: text}, base: s.fset.File(f.Pos()).Pos(0),
			next: next, skip: skip, counts: map[string]int{}, besideError: map[ast.Node]bool{},
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				v.inFunc = funcName(fn)
				v.block(fn.Body)
			}
		}
		next = v.next
		out.mutants = append(out.mutants, v.mutants...)
		out.files[name] = v.edits.String()
	}
	slices.SortFunc(out.mutants, func(a, b Mutant) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func funcName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	t := types.ExprString(fn.Recv.List[0].Type)
	if strings.HasPrefix(t, "*") {
		t = "(" + t + ")"
	}
	return t + "." + fn.Name.Name
}

// add creates a mutant of the code and returns its number, or 0 if the mutant is omitted.
func (v *visitor) add(op string, n ast.Node) int {
	from, to := v.offsets(n)
	m := Mutant{
		ID: v.next, File: v.file, Line: v.s.fset.Position(n.Pos()).Line, Func: v.inFunc, Op: op,
		Text: oneLine(v.edits.text[from:to]),
	}
	same := m.Key()
	v.counts[same]++
	m.Nth = v.counts[same]
	if v.skip != nil && v.skip(&m) {
		return 0
	}
	v.next++
	v.mutants = append(v.mutants, m)
	return m.ID
}

func (v *visitor) offsets(n ast.Node) (from, to int) {
	return int(n.Pos() - v.base), int(n.End() - v.base)
}

// wrap creates a mutant with text before and after the code. The character # in the text stands for
// the mutant's number.
func (v *visitor) wrap(op string, n ast.Node, before, after string) {
	id := v.add(op, n)
	if id == 0 {
		return
	}
	from, to := v.offsets(n)
	fill := func(s string) string { return strings.ReplaceAll(s, "#", itoa(id)) }
	v.edits.wrap(from, to, fill(before), fill(after))
}

// block visits a statement and all nodes below it.
func (v *visitor) block(body ast.Node) {
	var parents []ast.Node
	ast.Inspect(body, func(n ast.Node) bool {
		if n == nil {
			parents = parents[:len(parents)-1]
			return true
		}
		var parent ast.Node
		if len(parents) > 0 {
			parent = parents[len(parents)-1]
		}
		if !v.node(n, parent) {
			return false
		}
		parents = append(parents, n)
		return true
	})
}

// node creates the mutants of one node. It returns false if the nodes below it must not be mutated.
func (v *visitor) node(n, parent ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok == token.VAR
	case *ast.ExprStmt:
		return !v.logs(n)
	case *ast.ArrayType, *ast.StructType, *ast.InterfaceType, *ast.FuncType, *ast.MapType:
		return false
	case *ast.BlockStmt:
		v.list(n.List)
	case *ast.CaseClause:
		v.list(n.Body)
	case *ast.CommClause:
		v.list(n.Body)
	case *ast.IfStmt:
		v.condition("negate", n.Cond)
		if isFailure(n.Cond) {
			for _, s := range n.Body.List {
				v.markBesideError(s)
			}
		}
	case *ast.ReturnStmt:
		if v.returnsNewError(n) {
			v.markBesideError(n)
		}
		v.results(n)
	case ast.Expr:
		return !v.besideError[n] && v.expr(n, parent)
	}
	return true
}

// isFailure reports whether a condition is "err != nil".
func isFailure(cond ast.Expr) bool {
	b, ok := cond.(*ast.BinaryExpr)
	return ok && b.Op == token.NEQ && types.ExprString(b.X) == "err" && types.ExprString(b.Y) == "nil"
}

// returnsNewError reports whether a return statement creates the error that it returns.
func (v *visitor) returnsNewError(r *ast.ReturnStmt) bool {
	if len(r.Results) == 0 {
		return false
	}
	call, ok := r.Results[len(r.Results)-1].(*ast.CallExpr)
	return ok && slices.Contains([]string{"fmt.Errorf", "errors.New", "status.Error", "status.Errorf"}, types.ExprString(call.Fun))
}

// markBesideError excludes the constants and variables that a statement returns together with an
// error. Callers check the error first.
func (v *visitor) markBesideError(s ast.Stmt) {
	if r, ok := s.(*ast.ReturnStmt); ok && len(r.Results) > 1 {
		for _, e := range r.Results[:len(r.Results)-1] {
			_, isVariable := e.(*ast.Ident)
			v.besideError[e] = isVariable || v.constant(e) != nil
		}
	}
}

// condition negates a condition that contains no comparison or logical operator at its top level.
func (v *visitor) condition(op string, e ast.Expr) {
	if b, ok := ast.Unparen(e).(*ast.BinaryExpr); ok && v.mutable(b) {
		return
	}
	if v.constant(e) == nil {
		v.wrap(op, e, "((", ") != mutOn(#))")
	}
}

// mutable reports whether a binary expression gets its own mutants.
func (v *visitor) mutable(b *ast.BinaryExpr) bool { return v.constant(b) == nil }

// constant returns the type of a constant expression, or nil for other expressions.
func (v *visitor) constant(e ast.Expr) types.Type {
	if tv, ok := v.s.info.Types[e]; ok && tv.Value != nil {
		return tv.Type
	}
	return nil
}

// list creates a mutant for each statement that can be removed.
func (v *visitor) list(statements []ast.Stmt) {
	for _, s := range statements {
		if droppable(s) && !v.logs(s) {
			v.wrap("drop", s, "if !mutOn(#) { ", " }")
		}
	}
}

// logs reports whether a statement writes a log line. Such statements are not mutated.
func (v *visitor) logs(s ast.Stmt) bool {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := e.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	t := v.s.info.Types[method.X].Type
	return t != nil && t.String() == "*log/slog.Logger"
}

func droppable(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok {
			return true
		}
		name, ok := call.Fun.(*ast.Ident)
		return !ok || name.Name != "panic" // a panic may end a function
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE && !blank(s)
	case *ast.IncDecStmt, *ast.SendStmt, *ast.DeferStmt:
		return true
	case *ast.BranchStmt:
		return s.Tok == token.CONTINUE || s.Tok == token.BREAK
	case *ast.ReturnStmt:
		return len(s.Results) == 0
	}
	return false
}

// blank reports whether a statement assigns only to the blank identifier.
func blank(s *ast.AssignStmt) bool {
	for _, e := range s.Lhs {
		if name, ok := e.(*ast.Ident); !ok || name.Name != "_" {
			return false
		}
	}
	return true
}

// results mutates the values that a function returns.
func (v *visitor) results(r *ast.ReturnStmt) {
	for _, e := range r.Results {
		tv, ok := v.s.info.Types[e]
		if !ok || v.besideError[e] || tv.IsNil() || tv.Value != nil || len(r.Results) == 1 && isTuple(tv.Type) {
			continue
		}
		if b, ok := ast.Unparen(e).(*ast.BinaryExpr); ok && v.mutable(b) {
			continue
		}
		if basic, ok := tv.Type.Underlying().(*types.Basic); ok && basic.Info()&types.IsBoolean != 0 {
			v.wrap("negate", e, "((", ") != mutOn(#))")
			continue
		}
		v.wrap("zero", e, "mutZero(#, ", ")")
	}
}

func isTuple(t types.Type) bool {
	_, ok := t.(*types.Tuple)
	return ok
}
