package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mapsync/internal/handbook"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// resolve returns an error if a command line of syncd is not valid: its command, flags and
// arguments.
func resolve(words []string) error {
	root := newRoot()
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	if cmd == root {
		return fmt.Errorf("%q is not a subcommand", strings.Join(words, " "))
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return fmt.Errorf("syncd %s: %w", cmd.Name(), err)
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return fmt.Errorf("syncd %s: %w", cmd.Name(), err)
	}
	return nil
}

var (
	commandEnd  = regexp.MustCompile(`\s+(#.*|&&?|\||2?>>?)\s*`)
	jqFilter    = regexp.MustCompile(`^jq (?:-\w+ )*'?([^']*)'?$`)
	jqObject    = regexp.MustCompile(`^(.*) \| \{(.*)\}$`)
	statusPath  = regexp.MustCompile(`^(\.[a-z_]+(\[\])?)+$`)
	settingSpan = regexp.MustCompile(`^[a-z]+(-[a-z]+)*(: \S+)?$`)
	flagSpan    = regexp.MustCompile(`^--[a-z-]+`)
	metricSpan  = regexp.MustCompile(`^` + handbook.MetricPrefix + `\w+`)
)

// checkCommand returns an error if a line with a call of syncd is not valid, including the jq
// filter of its output.
func checkCommand(line string) error {
	parts := strings.Split(commandEnd.ReplaceAllString(line, "\n"), "\n")
	if before, filter, ok := strings.Cut(line, " | jq "); ok {
		parts = []string{before, "jq " + filter}
	}
	for _, part := range parts {
		words := strings.Fields(part)
		switch {
		case len(words) == 0 || words[0] != "syncd" && words[0] != "jq":
		case words[0] == "jq" && strings.HasPrefix(line, "syncd status"):
			if err := checkFilter(part); err != nil {
				return err
			}
		case words[0] == "syncd":
			if err := resolve(words[1:]); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkFilter checks a jq filter: paths, or a path and the fields of an object at that path.
func checkFilter(call string) error {
	filter := jqFilter.FindStringSubmatch(call)
	if filter == nil {
		return fmt.Errorf("%q is not a call of jq", call)
	}
	paths := strings.Split(filter[1], ", ")
	if object := jqObject.FindStringSubmatch(filter[1]); object != nil {
		paths = paths[:0]
		for name := range strings.SplitSeq(object[2], ", ") {
			paths = append(paths, object[1]+"."+name)
		}
	}
	for _, path := range paths {
		if err := checkPath(path); err != nil {
			return err
		}
	}
	return nil
}

// checkPath returns an error if the status has no field at a path like .peers[].node.
func checkPath(path string) error {
	if !statusPath.MatchString(path) {
		return fmt.Errorf("%q is not a path of a field", path)
	}
	at, names := reflect.TypeFor[daemon.Status](), strings.Split(path[1:], ".")
	for n, name := range names {
		name, each := strings.CutSuffix(name, "[]")
		if at.Kind() == reflect.Pointer {
			at = at.Elem()
		}
		if at.Kind() != reflect.Struct {
			return fmt.Errorf("%s: a %s has no fields", path, at)
		}
		i := slices.IndexFunc(reflect.VisibleFields(at), func(f reflect.StructField) bool {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return tag == name
		})
		if i < 0 {
			return fmt.Errorf("%s: the status has no %s there", path, name)
		}
		at = at.Field(i).Type
		list, last := at.Kind() == reflect.Slice, n == len(names)-1
		if each && !list || list && !each && !last {
			return fmt.Errorf("%s: is %s a list?", path, name)
		}
		if each {
			at = at.Elem()
		}
	}
	return nil
}

// checkSetting returns an error if a setting, or a setting with a value, is not valid.
func checkSetting(span string) error {
	name, _, valued := strings.Cut(span, ": ")
	settings := config.Default()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	settings.Bind(flags)
	if flags.Lookup(name) == nil {
		return fmt.Errorf("%s is not a setting", name)
	}
	if !valued {
		return nil
	}
	settings.Maps = []string{"m"}
	if err := settings.Parse([]byte(span)); err != nil {
		return err
	}
	return settings.Validate()
}

// checkFlags returns an error if no subcommand has a flag of the span.
func checkFlags(span string) error {
	for word := range strings.FieldsSeq(span) {
		name, isFlag := strings.CutPrefix(word, "--")
		known := slices.ContainsFunc(newRoot().Commands(), func(c *cobra.Command) bool {
			return c.Flags().Lookup(name) != nil
		})
		if isFlag && !known {
			return fmt.Errorf("no subcommand has --%s", name)
		}
	}
	return nil
}

// All pages and the README contain only valid calls of syncd and existing metrics.
func TestPagesCallRealCommands(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) < 5 {
		t.Fatalf("pages: got %q, error %v, want at least 5", pages, err)
	}
	metrics, _ := readRunbook(t)
	calls := 0
	for _, path := range append(pages, "../README.md") {
		page, err := handbook.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range page.Sections {
			s := &page.Sections[i]
			for _, line := range append(handbook.Spans(s.Prose), s.Code...) {
				line = strings.TrimSpace(line)
				if name := metricSpan.FindString(line); name != "" && metrics[name].Name == "" {
					t.Errorf("%s, %q: metric %s does not exist", path, s.Title, name)
				}
				if flagSpan.MatchString(line) {
					if err := checkFlags(line); err != nil {
						t.Errorf("%s, %q: flags: got %v, want known ones", path, s.Title, err)
					}
				}
				if !strings.HasPrefix(line, "syncd ") {
					continue
				}
				calls++
				if err := checkCommand(line); err != nil {
					t.Errorf("%s, %q: `%s`: %v", path, s.Title, line, err)
				}
			}
		}
	}
	if calls < 20 {
		t.Errorf("calls of syncd in the pages: got %d, want at least 20", calls)
	}
}

// externalWords matches code spans of the pages for operators that are not from this project.
var externalWords = regexp.MustCompile(`^(syncd|/\S+|CAP_[A-Z_]+|(journalctl|systemctl|kubectl|chronyc|openssl|ss|nc|df|mount|sha256sum) .*|fexit|mountPropagation: \w+|bind-propagation=\w+|MemoryMax|(process|go)_\w+)$`)

// Code spans of the runbook and of night.md are commands, flags, settings, fields of the status, words of an output, metrics or
// label values. Quotes are texts of the program.
func TestRunbookTermsExist(t *testing.T) {
	metrics, runbook := readRunbook(t)
	night, err := handbook.Read("../docs/night.md")
	if err != nil {
		t.Fatal(err)
	}
	labels := []string{"peer", "map"}
	for _, m := range metrics {
		for name, values := range m.Labels {
			labels = append(append(labels, name), values...)
		}
	}
	texts := literals(t, "../syncd", "../peers")
	check := func(span string) error {
		switch {
		case externalWords.MatchString(span) || slices.Contains(labels, span) || metrics[span].Name != "":
			return checkGrep(span, texts)
		case strings.HasPrefix(span, "syncd "):
			return checkCommand(span)
		case strings.HasPrefix(span, "."):
			return checkPath(span)
		case flagSpan.MatchString(span):
			return checkFlags(span)
		case slices.Contains(outputWords, span):
			return nil
		case settingSpan.MatchString(span):
			return checkSetting(span)
		}
		return fmt.Errorf("unknown term")
	}
	for _, s := range slices.Concat(runbook.Sections, night.Sections) {
		for _, span := range slices.Concat(handbook.Spans(s.Prose), s.Indented, shellLines(&s)) {
			if err := check(span); err != nil {
				t.Errorf("section %q: `%s`: %v", s.Title, span, err)
			}
		}
		for _, quote := range handbook.Quotes(s.Prose) {
			if !containsText(texts, quote) {
				t.Errorf("section %q: quote %q is not a text of the program", s.Title, quote)
			}
		}
		if metrics[s.Title].Name != "" && len(s.Code) == 0 {
			t.Errorf("section %q: want a command", s.Title)
		}
	}
}

// outputWords are words that syncd prints, and roles of fields.
var outputWords = []string{"only_there", "newer_there", "value", "refused_here", "pending", "reason", "limit", "ktime", "ifindex", "local"}

// shellLines returns the commands in the fenced blocks of a section.
func shellLines(s *handbook.Section) (lines []string) {
	for _, b := range s.Blocks {
		if b.Language == "sh" {
			lines = append(lines, strings.Split(strings.TrimSpace(b.Text), "\n")...)
		}
	}
	return lines
}

// readRunbook returns the metrics that have a section in the runbook, and the page.
func readRunbook(t *testing.T) (map[string]handbook.Metric, *handbook.Page) {
	t.Helper()
	page, err := handbook.Read("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := page.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	return metrics, page
}

var grepPattern = regexp.MustCompile(`--grep '([^']*)'`)

// checkGrep returns an error if an alternative of a journal search occurs in no log message.
func checkGrep(command string, said []string) error {
	pattern := grepPattern.FindStringSubmatch(command)
	if pattern == nil {
		return nil
	}
	for text := range strings.SplitSeq(pattern[1], "|") {
		if !containsText(said, text) {
			return fmt.Errorf("%q is not a text of the program", text)
		}
	}
	return nil
}

func containsText(said []string, text string) bool {
	return slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, text) })
}

// literals returns the string literals in the program's code.
func literals(t *testing.T, dirs ...string) (list []string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					s, err := strconv.Unquote(lit.Value)
					list = append(list, s)
					return err == nil
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return list
}
