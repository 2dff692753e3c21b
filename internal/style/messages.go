package style

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// failing are the methods of tests that report a failure with a message.
var failing = []string{"Error", "Errorf", "Fatal", "Fatalf"}

// verbs matches what a message has if it consists of values only.
var verbs = regexp.MustCompile(`%[+#]?[a-z]|[ :,.]`)

// Messages returns the failure messages of a Go test file that state what came and not what was wanted.
func Messages(file string, data []byte) ([]Finding, error) {
	if !strings.HasSuffix(file, "_test.go") {
		return nil, nil
	}
	f, set, err := parse(file, data)
	if err != nil {
		return nil, err
	}
	var found []Finding
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(failing, method.Sel.Name) || len(call.Args) == 0 {
			return true
		}
		text := literals(call.Args[0])
		bare := text != "" && verbs.ReplaceAllString(text, "") == ""
		if bare || strings.Contains(text, "got ") && !strings.Contains(text, "want") {
			found = append(found, Finding{file, set.Position(call.Pos()).Line, fmt.Sprintf("failure message %q: say what was wanted", text)})
		}
		return true
	})
	return found, nil
}

// literals returns the string literals of an expression, joined.
func literals(e ast.Expr) string {
	var text strings.Builder
	ast.Inspect(e, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			text.WriteString(strings.Trim(l.Value, "\"`"))
		}
		return true
	})
	return text.String()
}
