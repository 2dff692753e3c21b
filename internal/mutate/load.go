package mutate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// source is a package's code, parsed and type-checked.
type source struct {
	dir, path, name string
	fset            *token.FileSet
	files           []*ast.File
	names           []string // of the files, without the directory
	text            map[string]string
	tests           []string // names of the test files, and of the files of packages in subfolders that they import
	info            *types.Info
	pkg             *types.Package
}

// goPackage is the go command's description of a package.
type goPackage struct {
	Dir, ImportPath, Name, Export      string
	GoFiles, TestGoFiles, XTestGoFiles []string
	TestImports, XTestImports          []string
}

// load loads the package that pattern matches. pattern is a pattern of the go command that matches one
// package.
func load(pattern string) (*source, error) {
	all, err := goList(pattern)
	if err != nil {
		return nil, err
	}
	exports := make(map[string]string)
	for _, p := range all {
		exports[p.ImportPath] = p.Export
	}
	p := all[len(all)-1] // its dependencies precede it
	s := &source{dir: p.Dir, path: p.ImportPath, name: p.Name, fset: token.NewFileSet(), text: map[string]string{}}
	if s.tests, err = p.testFiles(); err != nil {
		return nil, err
	}
	for _, name := range p.GoFiles {
		text, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return nil, fmt.Errorf("read source: %w", err)
		}
		f, err := parser.ParseFile(s.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse source: %w", err)
		}
		if ast.IsGenerated(f) {
			// Generated files are parsed for their types but not mutated, because they have no text.
			s.files = append(s.files, f)
			continue
		}
		s.files, s.names, s.text[name] = append(s.files, f), append(s.names, name), string(text)
	}
	s.info = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(s.fset, "gc", func(path string) (io.ReadCloser, error) {
		file, ok := exports[path]
		if !ok || file == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(file)
	})}
	if s.pkg, err = config.Check(p.ImportPath, s.fset, s.files, s.info); err != nil {
		return nil, fmt.Errorf("check types: %w", err)
	}
	return s, nil
}

// goList returns the package, preceded by all packages that it imports.
func goList(pattern string) ([]goPackage, error) {
	cmd := exec.Command("go", "list", "-deps", "-export", "-json=Dir,ImportPath,Name,Export,GoFiles,TestGoFiles,XTestGoFiles,TestImports,XTestImports", pattern)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list package %s: %w", pattern, err)
	}
	var all []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("parse list of packages: %w", err)
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("list package %s: there is none", pattern)
	}
	return all, nil
}

// testFiles returns the names of the test files, and of the Go files of packages in subfolders that the
// tests import.
func (p *goPackage) testFiles() ([]string, error) {
	names := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
	imports := slices.Concat(p.TestImports, p.XTestImports)
	slices.Sort(imports)
	for _, path := range slices.Compact(imports) {
		folder, ok := strings.CutPrefix(path, p.ImportPath+"/")
		if !ok {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(p.Dir, folder))
		if err != nil {
			return nil, fmt.Errorf("list files of tests: %w", err)
		}
		for _, e := range entries {
			if filepath.Ext(e.Name()) == ".go" {
				names = append(names, filepath.Join(folder, e.Name()))
			}
		}
	}
	return names, nil
}

func itoa(n int) string { return strconv.Itoa(n) }

// oneLine returns code on one line.
func oneLine(text string) string {
	const longest = 90
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > longest {
		text = text[:longest] + "..."
	}
	return text
}
