// Package style checks the language of the project: the words of its texts and the identifiers of its
// code, as docs/style.md defines them.
package style

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

// Finding is a sentence or an identifier that docs/style.md replaces.
type Finding struct {
	File string
	Line int
	Text string
}

func (f Finding) String() string { return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Text) }

// Report is the result for the texts of a set of files.
type Report struct {
	// Words is the number of words in comments, documentation and string literals.
	Words int
	// Sentences are the lines with a replaced word.
	Sentences []Finding
}

// Rate returns the number of lines with a replaced word per 1,000 words.
func (r Report) Rate() float64 {
	if r.Words == 0 {
		return 0
	}
	return 1000 * float64(len(r.Sentences)) / float64(r.Words)
}

// replaced matches the words that are the quickest sign of a sentence to be rewritten.
var replaced = regexp.MustCompile(`\b([Tt]ells?|[Tt]old|[Tt]eller|[Rr]etell(s|ing)?|[Ww]hoever|[Ll]est|[Nn]obody|[Ss]ays so|[Hh]ears? of|` +
	`[Bb]elieves?|[Ll]ies|[Ll]ying|no more\b\S*$|(is|are) no [a-km-z][a-z]+|not to be had|counts? for nothing|[Mm]akes way|put right|been met|` +
	`owes?|forgiv[a-z]+)\b|(^|[.;:] )(What|Who|Whose|That which) [a-z]+`)

// Add checks the texts of a file: all lines of a page, otherwise comments and, in Go, string literals.
// It returns an error if a Go file has a syntax error.
func (r *Report) Add(file string, data []byte) error {
	switch filepath.Ext(file) {
	case ".go":
		return r.addGo(file, data)
	case ".c", ".h", ".proto", ".sh", "":
		r.addLines(file, data, func(line string) bool {
			line = strings.TrimSpace(line)
			return strings.HasPrefix(line, "//") || strings.HasPrefix(line, "*") || strings.HasPrefix(line, "/*") || strings.HasPrefix(line, "#")
		})
	default:
		r.addLines(file, data, func(string) bool { return true })
	}
	return nil
}

func (r *Report) addLines(file string, data []byte, is func(string) bool) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if is(lines.Text()) {
			r.addText(file, n, lines.Text())
		}
	}
}

func (r *Report) addGo(file string, data []byte) error {
	set := token.NewFileSet()
	f := set.AddFile(file, -1, len(data))
	var s scanner.Scanner
	var failed error
	s.Init(f, data, func(at token.Position, text string) { failed = fmt.Errorf("scan %s: %s", at, text) }, scanner.ScanComments)
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return failed
		}
		if kind != token.COMMENT && kind != token.STRING {
			continue
		}
		first := set.Position(pos).Line
		for i, line := range strings.Split(text, "\n") {
			r.addText(file, first+i, strings.Trim(line, "/\t \"`"))
		}
	}
}

func (r *Report) addText(file string, line int, text string) {
	r.Words += len(strings.Fields(text))
	if replaced.MatchString(text) {
		r.Sentences = append(r.Sentences, Finding{file, line, strings.TrimSpace(text)})
	}
}

// bannedWords are the parts of identifiers that the glossary replaces, with the term that replaces them.
var bannedWords = map[string]string{
	"tell": "send", "told": "sent", "tells": "sends", "telling": "sending", "teller": "sender", "tale": "answer",
	"retell": "resend", "retold": "resent", "retelling": "resend", "untold": "unsent",
	"intake": "inbound map stream", "walk": "full sync", "rewalk": "repeated full sync",
	"debt": "write barrier", "debts": "write barriers", "owe": "write barrier", "owes": "write barrier", "owed": "write barrier", "forgive": "remove barrier",
	"warmth": "prefetch", "stray": "early delete", "strays": "early deletes",
	"lane": "field accessor", "judge": "decide", "lie": "stress", "liar": "stress", "hunt": "stress",
	"rival": "alternative", "crowd": "churn", "nobody": "none", "whoever": "any",
}

// Banned returns the declared identifiers of a Go file that have a replaced word as a part.
func Banned(file string, data []byte) ([]Finding, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, data, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	var found []Finding
	add := func(names ...*ast.Ident) {
		for _, name := range names {
			for _, part := range parts(name.Name) {
				if term, banned := bannedWords[part]; banned {
					found = append(found, Finding{file, set.Position(name.Pos()).Line, fmt.Sprintf("identifier %s: use the term %q", name.Name, term)})
				}
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name)
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.ValueSpec:
			add(n.Names...)
		case *ast.Field:
			add(n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, left := range n.Lhs {
					if name, ok := left.(*ast.Ident); ok {
						add(name)
					}
				}
			}
		}
		return true
	})
	return found, nil
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
