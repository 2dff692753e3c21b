package style

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// bannedWords are the parts of identifiers that the glossary replaces, with the term that replaces them.
var bannedWords = map[string]string{
	"tell": "send", "told": "sent", "tells": "sends", "telling": "sending", "teller": "sender", "tale": "answer",
	"retell": "resend", "retold": "resent", "retelling": "resend", "untold": "unsent",
	"intake": "inbound map stream", "walk": "full sync", "walks": "full syncs", "rewalk": "repeated full sync",
	"debt": "write barrier", "debts": "write barriers", "owe": "write barrier", "owes": "write barrier", "owed": "write barrier", "forgive": "remove barrier",
	"warmth": "prefetch", "stranger": "unverified owner", "strangers": "unverified owners", "stray": "early delete", "strays": "early deletes",
	"lane": "field accessor", "judge": "decide", "lie": "stress", "liar": "stress", "hunt": "stress",
	"rival": "alternative", "crowd": "churn", "nobody": "none", "whoever": "any",
	"hear": "receive", "hears": "receives", "heard": "received", "witness": "observer", "claim": "adopt", "claims": "adopts", "unclaimed": "unversioned",
	"quiet": "softirq-safe", "loud": "not softirq-safe", "warmed": "prefetched", "mend": "repair", "mended": "repaired", "knows": "has",
}

// deprecated are metrics that keep a replaced term in their name for one release.
var deprecated = []string{"mapsync_stream_walks_total"}

var (
	metricName = regexp.MustCompile(`\bmapsync_[a-z_]+`)
	cComment   = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	cName      = regexp.MustCompile(`\b[A-Za-z_]\w*`)
)

// Banned returns the declared identifiers and the metric names of a Go file, or all identifiers of a C or
// protobuf file, that have a replaced word as a part. The file's own name counts, too.
func Banned(file string, data []byte) ([]Finding, error) {
	found := bannedName(nil, file, 0, "file name", strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)))
	switch filepath.Ext(file) {
	case ".go":
		declared, err := bannedGo(file, data)
		return append(found, declared...), err
	case ".c", ".h", ".proto":
		blank := cComment.ReplaceAllFunc(data, func(c []byte) []byte { return bytes.Repeat([]byte("\n"), bytes.Count(c, []byte("\n"))) })
		for n, line := range strings.Split(string(blank), "\n") {
			for _, name := range cName.FindAllString(line, -1) {
				found = bannedName(found, file, n+1, "identifier", name)
			}
		}
	}
	return found, nil
}

// bannedName appends a finding for each replaced part of a name.
func bannedName(found []Finding, file string, line int, kind, name string) []Finding {
	for _, part := range parts(name) {
		if term, banned := bannedWords[part]; banned {
			found = append(found, Finding{file, line, fmt.Sprintf("%s %s: use the term %q", kind, name, term)})
		}
	}
	return found
}

// bannedGo is Banned for the content of a Go file.
func bannedGo(file string, data []byte) ([]Finding, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, data, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	var found []Finding
	ast.Inspect(f, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			for _, metric := range metricName.FindAllString(literal.Value, -1) {
				if !slices.Contains(deprecated, metric) {
					found = bannedName(found, file, set.Position(literal.Pos()).Line, "metric", metric)
				}
			}
		}
		for _, name := range declared(n) {
			found = bannedName(found, file, set.Position(name.Pos()).Line, "identifier", name.Name)
		}
		return true
	})
	return found, nil
}

// declared returns the identifiers that a node declares.
func declared(n ast.Node) (names []*ast.Ident) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return []*ast.Ident{n.Name}
	case *ast.TypeSpec:
		return []*ast.Ident{n.Name}
	case *ast.ValueSpec:
		return n.Names
	case *ast.Field:
		return n.Names
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			return nil
		}
		for _, left := range n.Lhs {
			if name, ok := left.(*ast.Ident); ok {
				names = append(names, name)
			}
		}
	}
	return names
}

// parts splits an identifier at its capital letters and underscores, and returns the parts in lower case.
func parts(name string) []string {
	var all []string
	start := 0
	runes := []rune(name)
	for i := 1; i <= len(runes); i++ {
		if i < len(runes) && !begins(runes, i) {
			continue
		}
		if part := strings.Trim(strings.ToLower(string(runes[start:i])), "_0123456789"); part != "" {
			all = append(all, part)
		}
		start = i
	}
	return all
}

// begins reports whether a part of an identifier begins at rune i, above 0.
func begins(name []rune, i int) bool {
	if name[i] == '_' {
		return true
	}
	return unicode.IsUpper(name[i]) && (unicode.IsLower(name[i-1]) || i+1 < len(name) && unicode.IsLower(name[i+1]))
}
