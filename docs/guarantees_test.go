// Package docs tests the statements of the pages.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mapsync/internal/handbook"
)

// noPromises is the section whose items need no test.
const noPromises = "Not guaranteed"

var (
	// backing is the end of a guarantee: its tests.
	backing = regexp.MustCompile("\\(((?:`[^`]+`(?:, )?)+)\\)\\.$")
	// testSpan is a package, a test or fuzz target, and a scenario or subtest.
	testSpan = regexp.MustCompile(`^([a-z][a-z0-9/]*)\.((?:Test|Fuzz)\w+)(?:/(.+))?$`)
)

// Each guarantee names tests, and each named test exists.
func TestGuaranteesHaveTests(t *testing.T) {
	page, err := handbook.Read("guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	known, promises := make(suites), 0
	for i := range page.Sections {
		s := &page.Sections[i]
		for _, item := range handbook.Items(s.Prose) {
			named := backing.FindStringSubmatch(item)
			if named == nil && s.Title != noPromises {
				t.Errorf("%s: no test is named at the end of %q", s.Title, item)
				continue
			}
			promises++
			for _, span := range handbook.Spans(item) {
				backs := named != nil && strings.Contains(named[1], "`"+span+"`")
				if !backs && !testSpan.MatchString(span) {
					continue
				}
				if err := known.check(span); err != nil {
					t.Errorf("tests named in %s: got %v, want existing ones", s.Title, err)
				}
			}
		}
	}
	if promises < 50 || page.Find("not-guaranteed") == nil {
		t.Errorf("guarantees: got %d, want at least 50, and a section not-guaranteed", promises)
	}
}

// suites are the tests of packages, by path.
type suites map[string]*suite

type suite struct {
	tests    []string // and fuzz targets
	literals []string // in the test files: names of subtests are among them
}

// check returns an error if the test does not exist.
func (s suites) check(span string) error {
	name := testSpan.FindStringSubmatch(span)
	if name == nil {
		return fmt.Errorf("%s is not written like package.TestName", span)
	}
	dir := filepath.Join("..", filepath.FromSlash(name[1]))
	if s[dir] == nil {
		var err error
		if s[dir], err = readSuite(dir); err != nil {
			return fmt.Errorf("find tests of %s: %w", span, err)
		}
	}
	if !slices.Contains(s[dir].tests, name[2]) {
		return fmt.Errorf("%s: test not found", span)
	}
	if name[3] == "" || slices.Contains(s[dir].literals, name[3]) {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "testdata", "scenarios", name[3])); err != nil {
		return fmt.Errorf("%s: there is neither such a subtest nor such a scenario", span)
	}
	return nil
}

func readSuite(dir string) (*suite, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	s := &suite{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil {
					s.tests = append(s.tests, n.Name.Name)
				}
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					s.literals = append(s.literals, text)
				}
			}
			return true
		})
	}
	return s, nil
}

func TestWrongTestNamesAreRefused(t *testing.T) {
	known := make(suites)
	for span, want := range map[string]string{
		"syncd/table.TestScenarios/restart":                              "",
		"syncd/replicate.TestCompareRepairs/a corrupt value in memory":   "",
		"syncd/replicate.FuzzBatch":                                      "",
		"syncd/table.TestScenarios/no such scenario":                     "neither such a subtest",
		"syncd/table.TestNothing":                                        "test not found",
		"syncd/nowhere.TestScenarios":                                    "test not found",
		"TestScenarios":                                                  "not written like",
		"syncd/table.checkInvariants":                                    "not written like",
		"a guarantee of syncd/table.TestScenarios that is none of those": "not written like",
	} {
		if err := known.check(span); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", span, err, want)
		}
	}
}

// Links between pages lead to pages, and to headings on them.
func TestLinksResolve(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"*.md", "adr/*.md", "report/*.md", "examples/*.md", "examples/*/*.md", "../bench/jitter/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("pages %s: got %q, error %v, want at least one", pattern, found, err)
		}
		paths = append(paths, found...)
	}
	for _, path := range append(paths, filepath.Join("..", "README.md"), filepath.Join("..", "CONTRIBUTING.md")) {
		page, err := handbook.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range page.Sections {
			for _, link := range handbook.Links(page.Sections[i].Prose) {
				if err := follow(path, page, link); err != nil {
					t.Errorf("links in %s, %q: got %v, want none that fails", path, page.Sections[i].Title, err)
				}
			}
		}
	}
}

// follow returns an error if the target of a link on a page does not exist. Addresses elsewhere are not tried.
func follow(from string, page *handbook.Page, link string) error {
	path, anchor, _ := strings.Cut(link, "#")
	if strings.Contains(path, ":") {
		return nil
	}
	if path != "" {
		path = filepath.Join(filepath.Dir(from), filepath.FromSlash(path))
		if _, err := os.Stat(path); err != nil || anchor == "" {
			return err
		}
		var err error
		if page, err = handbook.Read(path); err != nil {
			return err
		}
	}
	if page.Find(anchor) == nil {
		return fmt.Errorf("no heading for %s", link)
	}
	return nil
}
