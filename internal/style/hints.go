package style

import (
	"fmt"
	"go/ast"
	"slices"
	"strconv"
	"strings"
)

// withoutHint are the messages of warnings and errors that need no hint, with the reason.
var withoutHint = map[string]string{
	"failed to close map":          "the map is replaced or tried again in any case",
	"failed to close detached map": "the map is replaced or tried again in any case",
	"failed to send leave message, peers detect the stop after dead-time": "peers detect the stop",
	"refused a connection":                            "the attribute cause names the remedy",
	"connection to peer failed":                       "the attribute cause names the remedy",
	"closed connection to peer, certificate rejected": "the attribute cause names the remedy",
	"gossip warning":                                  "a text of memberlist, which has no remedy",
}

// notLoggers are packages and parameters with a function or method Error that logs nothing.
var notLoggers = []string{"http", "status", "t"}

// Hints returns the warnings and errors that a Go file of the product logs without the attribute hint, which
// names the remedy.
func Hints(file string, data []byte) ([]Finding, error) {
	if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") ||
		!strings.HasPrefix(file, "syncd/") && !strings.HasPrefix(file, "peers/") {
		return nil, nil
	}
	f, set, err := parse(file, data)
	if err != nil {
		return nil, err
	}
	var found []Finding
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || !warns(call) || hasHint(call.Args) {
			return true
		}
		message := literals(call.Args[0])
		if strings.HasSuffix(call.Fun.(*ast.SelectorExpr).Sel.Name, "Context") && len(call.Args) > 1 {
			message = literals(call.Args[1])
		}
		if withoutHint[message] == "" {
			found = append(found, Finding{file, set.Position(call.Pos()).Line, fmt.Sprintf("log message %q: add the attribute hint with the remedy", message)})
		}
		return true
	})
	return found, nil
}

// warns reports whether a call logs a warning or an error. The method Error of an error has no arguments.
func warns(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 || !slices.Contains([]string{"Warn", "Error", "WarnContext", "ErrorContext"}, method.Sel.Name) {
		return false
	}
	of, ok := method.X.(*ast.Ident)
	return !ok || !slices.Contains(notLoggers, of.Name)
}

// hasHint reports whether the arguments of a call contain the key hint.
func hasHint(args []ast.Expr) (found bool) {
	for _, arg := range args {
		ast.Inspect(arg, func(n ast.Node) bool {
			l, ok := n.(*ast.BasicLit)
			found = found || ok && l.Value == strconv.Quote("hint")
			return !found
		})
	}
	return found
}
