package style

import (
	"bytes"
	"fmt"
	"go/ast"
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
	"survivor": "fallback sender", "survivors": "fallback senders", "prospect": "verified node", "prospects": "verified nodes", "proven": "verified",
	"recheck": "reread", "rechecks": "rereads", "doubt": "uncertain", "doubts": "uncertain", "thaw": "expand", "loose": "version sum",
	"guest": "extra member", "guests": "extra members", "feed": "injector", "feeds": "injectors", "luck": "probability", "trail": "history",
	"quiet": "softirq-safe", "loud": "not softirq-safe", "warmed": "prefetched", "mend": "repair", "mended": "repaired", "knows": "has",
}

// otherMeaning are the paths in which a word has another, usual meaning: the system in a virtual machine, a mutant that no
// test finds, a stream of flows for other programs, the user, a parameter of the kernel.
var otherMeaning = map[string][]string{
	"guest": {"internal/vm/"}, "survivor": {"internal/mutate/"}, "survivors": {"internal/mutate/"},
	"feed": {"docs/examples/", "bench/bundling/"}, "nobody": {"deploy/", "internal/vm/"}, "quiet": {"internal/vm/"},
}

// deprecated are metrics that keep a replaced term in their name for one release.
var deprecated = regexp.MustCompile(`\b(mapsync_)?(stream_walks_total|map_rechecks_total)\b`)

var (
	cComment = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	word     = regexp.MustCompile(`\b[A-Za-z_]\w*`)
)

// Banned returns the names that have a replaced word as a part: the file's own, the declared identifiers and the words of
// string literals of a Go file, the identifiers of a C or protobuf file, or the words of a YAML or JSON file.
func Banned(file string, data []byte) ([]Finding, error) {
	found := bannedName(nil, file, 0, "file name", strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)))
	switch filepath.Ext(file) {
	case ".go":
		declared, err := bannedGo(file, data)
		return append(found, declared...), err
	case ".yaml", ".yml", ".json":
		for n, line := range strings.Split(string(data), "\n") {
			for _, name := range word.FindAllString(deprecated.ReplaceAllString(line, ""), -1) {
				found = bannedName(found, file, n+1, "text", name)
			}
		}
	case ".c", ".h", ".proto":
		blank := cComment.ReplaceAllFunc(data, func(c []byte) []byte { return bytes.Repeat([]byte("\n"), bytes.Count(c, []byte("\n"))) })
		for n, line := range strings.Split(string(blank), "\n") {
			for _, name := range word.FindAllString(line, -1) {
				found = bannedName(found, file, n+1, "identifier", name)
			}
		}
	}
	return found, nil
}

// bannedName appends a finding for each replaced part of a name.
func bannedName(found []Finding, file string, line int, kind, name string) []Finding {
	for _, part := range parts(name) {
		term, banned := bannedWords[part]
		if banned && !slices.ContainsFunc(otherMeaning[part], func(prefix string) bool { return strings.HasPrefix(file, prefix) }) {
			found = append(found, Finding{file, line, fmt.Sprintf("%s %s: use the term %q", kind, name, term)})
		}
	}
	return found
}

// bannedGo is Banned for the content of a Go file.
func bannedGo(file string, data []byte) ([]Finding, error) {
	f, set, err := parse(file, data)
	if err != nil {
		return nil, err
	}
	var found []Finding
	ast.Inspect(f, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			for _, name := range word.FindAllString(deprecated.ReplaceAllString(literal.Value, ""), -1) {
				found = bannedName(found, file, set.Position(literal.Pos()).Line, "text", name)
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
	case *ast.LabeledStmt:
		return []*ast.Ident{n.Label}
	case *ast.ImportSpec:
		if n.Name != nil {
			return []*ast.Ident{n.Name}
		}
	case *ast.RangeStmt:
		if n.Tok != token.DEFINE {
			return nil
		}
		for _, left := range []ast.Expr{n.Key, n.Value} {
			if name, ok := left.(*ast.Ident); ok {
				names = append(names, name)
			}
		}
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
