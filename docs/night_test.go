package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mapsync/internal/handbook"
	"mapsync/syncd/problem"
)

// problemGroup is the beginning of the headings above the sections of problems.
const problemGroup = "Problems "

// TestNightHasEachProblem: night.md has one section for each kind of problem, in the order of the kinds, with the words that syncd
// prints. It has no other sections in between.
func TestNightHasEachProblem(t *testing.T) {
	page, err := handbook.Read("night.md")
	if err != nil {
		t.Fatal(err)
	}
	var titles, ids []string
	var sections []*handbook.Section
	group := ""
	for i := range page.Sections {
		switch s := &page.Sections[i]; {
		case s.Level == 2:
			group = s.Title
		case s.Level == 3 && strings.HasPrefix(group, problemGroup):
			titles, sections = append(titles, s.Title), append(sections, s)
		}
	}
	for _, k := range problem.Kinds {
		ids = append(ids, k.ID)
	}
	if !slices.Equal(titles, ids) {
		t.Fatalf("sections of problems: got %q, want %q", titles, ids)
	}
	for i := range problem.Kinds {
		if err := checkProblem(&problem.Kinds[i], sections[i]); err != nil {
			t.Errorf("%s: got %v, want the words of syncd/problem/kinds.go", problem.Kinds[i].Documentation(), err)
		}
	}
}

// checkProblem returns an error unless a section begins with the meaning of a kind of problem, how to confirm it, and the remedy.
func checkProblem(k *problem.Kind, s *handbook.Section) error {
	items := handbook.Items(s.Prose)
	if len(items) != 3 {
		return fmt.Errorf("%d list items, want meaning, confirmation and remedy", len(items))
	}
	for i, begin := range []string{fmt.Sprintf("Meaning (%s): %s.", k.Severity, k.Meaning), "Confirm: ", "Remedy: " + k.Remedy} {
		if text := plain(items[i]); !strings.HasPrefix(text, begin) || len(text) < len("Confirm: ")+1 {
			return fmt.Errorf("item %q, want it to begin with %q", text, begin)
		}
	}
	// A command in a code span is executed, or listed with the reason.
	for program, n := range commandsIn(k.Remedy) {
		spans := slices.DeleteFunc(handbook.Spans(items[2]), func(span string) bool { return !strings.HasPrefix(span, program+" ") })
		if len(spans) < n {
			return fmt.Errorf("remedy %q, want its %d commands of %s as code", items[2], n, program)
		}
	}
	return nil
}

// commandsIn returns the number of commands in a remedy, by program.
func commandsIn(remedy string) map[string]int {
	count := make(map[string]int)
	for _, program := range slices.Concat(programs, slices.Collect(maps.Keys(programsNotRun))) {
		// A word in a sentence may have the name of a program: "make sure", "replace the install".
		if n := len(regexp.MustCompile(`(^|[:;,] |then |or |that )`+regexp.QuoteMeta(program)+` \S`).FindAllString(remedy, -1)); n > 0 {
			count[program] = n
		}
	}
	return count
}

// linkText matches a link, with its text.
var linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// plain returns a text without its marks.
func plain(markdown string) string {
	text := linkText.ReplaceAllString(markdown, "$1")
	return strings.Join(strings.Fields(strings.NewReplacer("`", "", "**", "").Replace(text)), " ")
}

// TestProblemsAreOfKinds: the code of syncd uses each kind of problem, and no id without a kind.
func TestProblemsAreOfKinds(t *testing.T) {
	used := make(map[string]string)
	for _, dir := range []string{"../syncd", "../peers"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				for _, id := range problemIDs(n) {
					used[id] = path
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range problem.Kinds {
		if used[k.ID] == "" {
			t.Errorf("problem %s: got no use in the code, want one", k.ID)
		}
		delete(used, k.ID)
	}
	for id, path := range used {
		t.Errorf("%s: problem %s: got no kind, want one in syncd/problem/kinds.go", path, id)
	}
}

// problemIDs returns the ids of problems in a part of the code: in a problem.Problem, in a call add(id, text), and in the attribute
// of a log line. An id that is not a literal is the text of the expression.
func problemIDs(n ast.Node) (ids []string) {
	switch n := n.(type) {
	case *ast.CompositeLit:
		if of, ok := n.Type.(*ast.SelectorExpr); !ok || of.Sel.Name != "Problem" {
			return nil
		}
		for _, field := range n.Elts {
			if pair, ok := field.(*ast.KeyValueExpr); ok && fmt.Sprint(pair.Key) == "ID" {
				ids = append(ids, idOf(pair.Value)...)
			}
		}
	case *ast.CallExpr:
		switch called := n.Fun.(type) {
		case *ast.Ident:
			if called.Name == "add" && len(n.Args) > 1 {
				if id, ok := literal(n.Args[0]); ok && !strings.Contains(id, " ") {
					ids = append(ids, id)
				}
			}
		case *ast.SelectorExpr:
			for i, arg := range n.Args[:max(len(n.Args)-1, 0)] {
				if key, ok := literal(arg); ok && key == problem.Attr && slices.Contains(logMethods, called.Sel.Name) {
					ids = append(ids, idOf(n.Args[i+1])...)
				}
			}
		}
	}
	return ids
}

// logMethods are the functions and methods whose arguments are attributes of log lines.
var logMethods = []string{"Debug", "Info", "Warn", "Error", "With", "String", "Any"}

// idOf returns the id in an expression. A parameter of the function add has none.
func idOf(x ast.Expr) []string {
	if id, ok := literal(x); ok {
		return []string{id}
	}
	if name, ok := x.(*ast.Ident); ok && name.Name == "id" {
		return nil
	}
	return []string{fmt.Sprintf("in an expression at %s", strconv.Itoa(int(x.Pos())))}
}
