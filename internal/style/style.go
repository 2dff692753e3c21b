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

// parse parses a Go file with its comments. Positions refer to the set.
func parse(file string, data []byte) (*ast.File, *token.FileSet, error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, data, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, nil, fmt.Errorf("parse: %w", err)
	}
	return f, set, nil
}
