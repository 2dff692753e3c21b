package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	// verb matches a verb of package fmt.
	verb = regexp.MustCompile(`%[-+#0-9.*\[\]]*[a-zA-Z]`)
	// column matches the space between two columns of a table.
	column = regexp.MustCompile(`\s{2,}`)
	// number matches a value in a table. A dash is one that the run on the page did not measure.
	number = `([-+]?[\d.]+|–)`
)

// formats are the texts that the code of a program can print.
type formats struct {
	rows  [][]*regexp.Regexp // of lines with tabs, a pattern for each column
	free  [][]bool           // whether a column of rows is a text that the program chooses
	texts []string
	words map[string]bool // of all texts
}

// readFormats reads the string literals in the Go files of the folders.
func readFormats(t *testing.T, dirs ...string) *formats {
	t.Helper()
	f := &formats{words: make(map[string]bool)}
	for _, dir := range dirs {
		paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: got files %q, error %v, want at least one file", dir, paths, err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				text, ok := literal(n)
				if ok {
					f.add(text)
				}
				return !ok
			})
		}
	}
	return f
}

// literal returns the value of a string literal, or of several that are added.
func literal(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(n.Value)
		return text, n.Kind == token.STRING && err == nil
	case *ast.BinaryExpr:
		x, isX := literal(n.X)
		y, isY := literal(n.Y)
		return x + y, isX && isY && n.Op == token.ADD
	}
	return "", false
}

func (f *formats) add(text string) {
	f.texts = append(f.texts, text)
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n,:", r) }) {
		f.words[word] = true
	}
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		line = strings.TrimSuffix(line, "\t")
		if !strings.Contains(line, "\t") {
			continue
		}
		var row []*regexp.Regexp
		var free []bool
		for cell := range strings.SplitSeq(line, "\t") {
			row, free = append(row, pattern(cell)), append(free, verb.FindString(cell) == cell && strings.HasSuffix(cell, "s"))
		}
		f.rows, f.free = append(f.rows, row), append(f.free, free)
	}
}

// pattern returns an expression for what a format prints.
func pattern(format string) *regexp.Regexp {
	var b strings.Builder
	rest := strings.ReplaceAll(format, "%%", "\x00")
	for {
		at := verb.FindStringIndex(rest)
		if at == nil {
			break
		}
		b.WriteString(regexp.QuoteMeta(rest[:at[0]]))
		if strings.ContainsAny(rest[at[1]-1:at[1]], "dfge") {
			b.WriteString(number)
		} else {
			b.WriteString(".+")
		}
		rest = rest[at[1]:]
	}
	b.WriteString(regexp.QuoteMeta(rest))
	return regexp.MustCompile("^" + strings.ReplaceAll(b.String(), "\x00", "%") + "$")
}

// checkRow returns an error if the program cannot print a line of a table.
func (f *formats) checkRow(line string) error {
	cells := column.Split(strings.TrimSpace(line), -1)
	for i, row := range f.rows {
		if f.fits(cells, row, f.free[i]) {
			return nil
		}
	}
	return fmt.Errorf("%q: the program has no format for such a line, want one with these %d columns", line, len(cells))
}

// fits reports whether cells are those of a format. The last column may be empty if it is a text.
func (f *formats) fits(cells []string, row []*regexp.Regexp, free []bool) bool {
	if len(cells)+1 == len(row) && free[len(row)-1] {
		row = row[:len(cells)]
	}
	if len(cells) != len(row) {
		return false
	}
	for i, cell := range cells {
		if !row[i].MatchString(cell) || free[i] && !f.has(cell) {
			return false
		}
	}
	return true
}

// has reports whether the program has all words of a text, except those that contain digits.
func (f *formats) has(text string) bool {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,:", r) }) {
		if !f.words[word] && !strings.ContainsAny(word, "0123456789") {
			return false
		}
	}
	return true
}

// figure matches a key of a line of figures, and its value.
var figure = regexp.MustCompile(`([\w%]+)=(\S+)`)

// checkFigures returns an error if the program cannot print the line of figures "NAME: KEY=VALUE …", or if
// it prints a key that the line lacks. A text of keys and values only
// that shares a key with the line is a part of it, unless it ends with a space.
func (f *formats) checkFigures(line string) error {
	name, _, _ := strings.Cut(line, " ")
	keys := figureKeys(line)
	var missing, known []string
	begins := false
	for _, text := range f.texts {
		printed := figureKeys(text)
		known = append(known, printed...)
		lacks := slices.DeleteFunc(slices.Clone(printed), func(key string) bool {
			return slices.ContainsFunc(keys, pattern(key).MatchString)
		})
		switch first := strings.HasPrefix(text, name+" "); {
		case first && len(lacks) == 0:
			begins = true
		case !first && len(lacks) < len(printed) && len(printed) == len(strings.Fields(text)) && !strings.HasSuffix(text, " "):
			missing = append(missing, lacks...)
		}
	}
	if !begins || len(missing) > 0 {
		return fmt.Errorf("%q: want a line that begins as that of the program, with its keys %q", line, missing)
	}
	for _, key := range keys {
		if !slices.ContainsFunc(known, func(k string) bool { return pattern(k).MatchString(key) }) {
			return fmt.Errorf("%q: the program prints no %s", line, key)
		}
	}
	return nil
}

func figureKeys(line string) (keys []string) {
	for _, m := range figure.FindAllStringSubmatch(line, -1) {
		keys = append(keys, m[1])
	}
	return keys
}
