package mutate

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
)

// comparisons are the functions that change whether a comparison includes equal operands.
var comparisons = map[token.Token]string{
	token.LSS: "mutLess", token.LEQ: "mutLessEqual", token.GTR: "mutGreater", token.GEQ: "mutGreaterEqual",
}

// operators are the functions that replace an arithmetic operator by another.
var operators = map[token.Token]string{
	token.ADD: "mutAdd", token.SUB: "mutSub", token.MUL: "mutMul", token.QUO: "mutDiv", token.REM: "mutRem",
	token.AND: "mutAnd", token.OR: "mutOr", token.XOR: "mutXor", token.AND_NOT: "mutAndNot",
	token.SHL: "mutShl", token.SHR: "mutShr",
}

// expr creates the mutants of an expression. It returns false if its subexpressions must not be
// mutated.
func (v *visitor) expr(e ast.Expr, parent ast.Node) bool {
	if t := v.constant(e); t != nil {
		v.literal(e, t, parent)
		return false
	}
	switch e := e.(type) {
	case *ast.BinaryExpr:
		v.binary(e)
	case *ast.CompositeLit, *ast.CallExpr, *ast.SelectorExpr:
	case *ast.Ident:
		return false
	}
	return true
}

func (v *visitor) binary(e *ast.BinaryExpr) {
	switch e.Op {
	case token.LAND:
		v.wrap("operand true", e.X, "((", ") || mutOn(#))")
		v.wrap("operand true", e.Y, "((", ") || mutOn(#))")
	case token.LOR:
		v.wrap("operand false", e.X, "((", ") && !mutOn(#))")
		v.wrap("operand false", e.Y, "((", ") && !mutOn(#))")
	case token.EQL, token.NEQ:
		v.wrap("negate", e, "((", ") != mutOn(#))")
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		v.wrap("negate", e, "((", ") != mutOn(#))")
		v.function("boundary", e, comparisons[e.Op])
	default:
		if name := operators[e.Op]; name != "" && v.isNumber(e) {
			v.function("arithmetic", e, name)
		}
	}
}

func (v *visitor) isNumber(e ast.Expr) bool {
	basic, ok := v.s.info.Types[e].Type.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsNumeric != 0
}

// function replaces an operator by a call of the named function.
func (v *visitor) function(op string, e *ast.BinaryExpr, name string) {
	id := v.add(op, e)
	if id == 0 {
		return
	}
	from, to := v.offsets(e)
	at := int(e.OpPos - v.base)
	v.edits.wrap(from, to, name+"("+itoa(id)+", ", ")")
	v.edits.replace(at, at+len(e.Op.String()), ",")
}

// literal mutates a literal that is used as a value. It does not mutate named constants. They are
// limits and flags, and their neighbouring values reveal little about the tests.
func (v *visitor) literal(e ast.Expr, t types.Type, parent ast.Node) {
	basic, ok := t.Underlying().(*types.Basic)
	if !ok || !v.isValue(e, parent) {
		return
	}
	value := v.s.info.Types[e].Value
	switch {
	case basic.Info()&types.IsBoolean != 0:
		v.wrap("negate", e, "((", ") != mutOn(#))")
	case isLiteral(e) && basic.Info()&types.IsInteger != 0 && basic.Info()&types.IsUntyped == 0 && value.Kind() == constant.Int:
		if name, ok := v.typeName(t); ok {
			v.wrap("constant", e, "mutOne(#, "+name+"(", "))")
		}
	}
}

func isLiteral(e ast.Expr) bool {
	_, ok := ast.Unparen(e).(*ast.BasicLit)
	return ok
}

// isValue reports whether another value of the type could replace a constant.
func (v *visitor) isValue(e ast.Expr, parent ast.Node) bool {
	switch p := parent.(type) {
	case *ast.CaseClause, *ast.KeyValueExpr:
		kv, ok := p.(*ast.KeyValueExpr)
		return ok && kv.Value == e
	case *ast.BinaryExpr:
		switch p.Op {
		case token.EQL, token.NEQ, token.ADD, token.SUB, token.AND, token.OR, token.REM:
			return true
		}
		return false
	case *ast.CallExpr:
		fun := v.s.info.Types[p.Fun]
		return e != p.Fun && !fun.IsType() && !fun.IsBuiltin()
	case *ast.AssignStmt, *ast.ReturnStmt, *ast.ValueSpec:
		return true
	}
	return false
}

// typeName returns the name of a type as written in the package's code. It returns false unless the
// type is built-in or belongs to the package.
func (v *visitor) typeName(t types.Type) (string, bool) {
	switch t := t.(type) {
	case *types.Basic:
		return t.Name(), true
	case *types.Named:
		return t.Obj().Name(), t.Obj().Pkg() == v.s.pkg && t.Obj().Parent() == v.s.pkg.Scope()
	}
	return "", false
}
