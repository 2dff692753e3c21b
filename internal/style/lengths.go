package style

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"path/filepath"
	"slices"
	"strings"
)

// MaxFileLines is the maximum number of lines of a Go, C or header file.
const MaxFileLines = 400

// Lengths has the lengths of the functions and files that Add has received.
type Lengths struct {
	// Files are the files of more than MaxFileLines lines.
	Files []Finding
	// functions are the functions of Go files other than tests, in the order of Add.
	functions []function
}

// function is a declared function. Its length is the number of lines from the keyword func to the closing brace.
type function struct {
	file         string
	name         string
	line, length int
}

// Add counts a Go, C or header file, unless it is generated. It returns an error if a Go file has a syntax error.
func (l *Lengths) Add(file string, data []byte) error {
	if !slices.Contains([]string{".go", ".c", ".h"}, filepath.Ext(file)) || Generated(file) {
		return nil
	}
	if n := bytes.Count(data, []byte("\n")); n > MaxFileLines {
		l.Files = append(l.Files, Finding{file, n, fmt.Sprintf("file of %d lines: split it, at most %d", n, MaxFileLines)})
	}
	if filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
		return nil
	}
	f, set, err := parse(file, data)
	if err != nil {
		return err
	}
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
			first := set.Position(d.Pos()).Line
			l.functions = append(l.functions, function{file, d.Name.Name, first, set.Position(d.Body.Rbrace).Line - first})
		}
	}
	return nil
}

// Percentile95 returns the smallest length that at least 95 % of the functions do not exceed, or 0 without functions.
func (l *Lengths) Percentile95() int {
	if len(l.functions) == 0 {
		return 0
	}
	all := make([]int, len(l.functions))
	for i, f := range l.functions {
		all[i] = f.length
	}
	slices.Sort(all)
	return all[(95*len(all)+99)/100-1]
}

// Longest returns the n longest functions, the longest first.
func (l *Lengths) Longest(n int) []Finding {
	all := slices.Clone(l.functions)
	slices.SortStableFunc(all, func(a, b function) int { return cmp.Compare(b.length, a.length) })
	var found []Finding
	for _, f := range all[:min(n, len(all))] {
		found = append(found, Finding{f.file, f.line, fmt.Sprintf("function %s of %d lines", f.name, f.length)})
	}
	return found
}

// Generated reports whether a generator of the build writes the file.
func Generated(file string) bool {
	return strings.HasSuffix(file, ".pb.go") || strings.Contains(file, "_bpfel.go")
}
