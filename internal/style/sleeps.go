package style

import (
	"go/ast"
	"strings"
)

// Sleeps returns the uses of time.Sleep in a Go test file that have no reason: a comment on the line or on the line
// above. In a function literal that is passed to synctest.Test, a sleep needs no reason, because its time is not real.
func Sleeps(file string, data []byte) ([]Finding, error) {
	if !strings.HasSuffix(file, "_test.go") {
		return nil, nil
	}
	f, set, err := parse(file, data)
	if err != nil {
		return nil, err
	}
	commented := make(map[int]bool) // by line
	for _, group := range f.Comments {
		// Text is empty if the group has directives only.
		for line := set.Position(group.Pos()).Line; line <= set.Position(group.End()).Line && group.Text() != ""; line++ {
			commented[line] = true
		}
	}
	var found []Finding
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && isName(call.Fun, "synctest", "Test") {
			return false
		}
		if e, ok := n.(ast.Expr); ok && isName(e, "time", "Sleep") {
			if line := set.Position(n.Pos()).Line; !commented[line] && !commented[line-1] {
				found = append(found, Finding{file, line, "time.Sleep without a reason: wait with internal/poll, or add a comment"})
			}
		}
		return true
	})
	return found, nil
}

// isName reports whether an expression is the name of a package's function.
func isName(e ast.Expr, pkg, name string) bool {
	selector, ok := e.(*ast.SelectorExpr)
	if !ok || selector.Sel.Name != name {
		return false
	}
	x, ok := selector.X.(*ast.Ident)
	return ok && x.Name == pkg
}
