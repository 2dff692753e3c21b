package style

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// loggingCode logs with and without hints.
const loggingCode = `package a

func f() {
	log.Warn("one", "a", 1)
	log.Warn("two", "a", 1, "hint", "do this")
	s.opts.Logger.Error("three", slog.String("hint", why))
	r.Logger.ErrorContext(ctx, "four", slog.Any("error", err))
	log.With("a", 1).WarnContext(ctx, "five", append(attrs, "hint", text)...)
	log.Error("six: no hint",
		"b", "a hint")
	log.Error("refused a connection")
	log.ErrorContext(ctx, "refused a connection")
	log.Info("seven")
	log.Error(message)
	http.Error(w, "eight", 400)
	return status.Error(codes.Internal, "nine"+err.Error())
}
`

func TestHints(t *testing.T) {
	found, err := Hints("syncd/a.go", []byte(loggingCode))
	want := []Finding{
		{"syncd/a.go", 4, `log message "one": add the attribute hint with the remedy`},
		{"syncd/a.go", 7, `log message "four": add the attribute hint with the remedy`},
		{"syncd/a.go", 9, `log message "six: no hint": add the attribute hint with the remedy`},
		{"syncd/a.go", 14, `log message "": add the attribute hint with the remedy`},
	}
	if err != nil || fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("log messages without hint: got %v, %v, want %v", found, err, want)
	}
	if found, err := Hints("peers/sub/a.go", []byte(loggingCode)); err != nil || len(found) != len(want) {
		t.Errorf("log messages of peers/: got %v, %v, want %d findings", found, err, len(want))
	}
	for _, file := range []string{"syncd/a_test.go", "bench/a.go", "peers/a.md"} {
		if found, err := Hints(file, []byte(loggingCode)); err != nil || found != nil {
			t.Errorf("log messages in %s: got %v, %v, want no findings", file, found, err)
		}
	}
	if _, err := Hints("syncd/b.go", []byte("no Go")); err == nil {
		t.Error("file with a syntax error: got no error, want one")
	}
}

// TestMessagesWithoutHint checks that the product still logs each message that needs no hint, without one.
func TestMessagesWithoutHint(t *testing.T) {
	logged := map[string]bool{}
	for _, dir := range []string{"syncd", "peers"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, data, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && warns(call) && !hasHint(call.Args) {
					logged[literals(call.Args[0])] = true
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for message, reason := range withoutHint {
		if !logged[message] || reason == "" {
			t.Errorf("message %q without hint: got logged %t, reason %q, want it logged and a reason", message, logged[message], reason)
		}
	}
}
