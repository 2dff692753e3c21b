package docs

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/handbook"
)

// TestCommandsOnPagesRun executes the commands of the other pages on a node of the quick start. Each of
// them succeeds. TestOutputsOnPages compares the outputs, because the pages show those of larger clusters.
func TestCommandsOnPagesRun(t *testing.T) {
	t.Parallel()
	commands := runnable(t)
	needTool(t, "jq")
	shell := startShell(t, cloneProject(t))
	runSteps(t, shell, "watch-changes")
	object, err := filepath.Abs("../bench/lb/bpf/lb_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	run(t, shell, onNode, 0)
	run(t, shell, formerNode, 0)
	for _, command := range commands {
		executed, code := adapt(command, object)
		run(t, shell, executed, code)
		for prefix, undo := range undone {
			if strings.HasPrefix(command, prefix) {
				run(t, shell, undo, 0)
			}
		}
	}
	if len(commands) < 90 {
		t.Errorf("%d commands were found, want at least 90", len(commands))
	}
}

// runnable returns the commands of all pages that run, each once, in the order of the pages. It fails for
// a command that neither runs nor is in a table of those that do not run, and for an unused entry of these.
func runnable(t *testing.T) (list []string) {
	t.Helper()
	used := make(map[string]bool)
	for _, c := range pageCommands(t) {
		program := strings.Fields(environment.ReplaceAllString(c.text, ""))[0]
		switch {
		case notRun[c.text] != "":
			used[c.text] = true
		case programsNotRun[program] != "":
			used[program] = true
		case !slices.Contains(programs, program):
			t.Errorf("%s: %q is unknown, want it among the programs that run, or in a table with the reason", c.page, c.text)
		case !slices.Contains(list, c.text):
			list = append(list, c.text)
		}
	}
	for _, table := range []map[string]string{notRun, programsNotRun} {
		for command, reason := range table {
			if !used[command] {
				t.Errorf("no page contains %q, which does not run: %s; want a page with it, or no such line", command, reason)
			}
		}
	}
	return list
}

// environment matches the variables before a command.
var environment = regexp.MustCompile(`^(\w+=("[^"]*"|\S+) )+`)

// command is a command on a page.
type command struct{ page, text string }

// pageCommands returns the commands of all pages but the quick start: each line of shell blocks and of
// indented blocks, and the code spans that begin with a known program.
func pageCommands(t *testing.T) (commands []command) {
	t.Helper()
	paths, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, "../README.md", "report/README.md") {
		page, err := handbook.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		if path == "quickstart.md" {
			continue
		}
		for i := range page.Sections {
			for _, text := range sectionCommands(&page.Sections[i]) {
				commands = append(commands, command{path, text})
			}
		}
	}
	return commands
}

// sectionCommands returns the commands of a section. A command after && is one of its own.
func sectionCommands(s *handbook.Section) (commands []string) {
	lines := slices.Clone(s.Indented)
	for _, b := range s.Blocks {
		if b.Language == "sh" {
			lines = append(lines, strings.Split(b.Text, "\n")...)
		}
	}
	for _, span := range handbook.Spans(s.Prose) {
		words := strings.Fields(span)
		if len(words) > 1 && (slices.Contains(programs, words[0]) || programsNotRun[words[0]] != "") {
			lines = append(lines, span)
		}
	}
	for _, line := range lines {
		line, _, _ = strings.Cut(line, " #")
		for part := range strings.SplitSeq(line, " && ") {
			if text := strings.Join(strings.Fields(part), " "); text != "" {
				commands = append(commands, text)
			}
		}
	}
	return commands
}

func run(t *testing.T, shell *handbook.Shell, command string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begun := time.Now()
	r, err := shell.Run(ctx, command)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, r.Output)
	}
	t.Logf("%s: exit code %d, %v", command, r.Exit, time.Since(begun).Round(time.Millisecond))
	if r.Exit != code {
		t.Errorf("%s: exit code %d, want %d\n%s", command, r.Exit, code, r.Output)
	}
}

// adapt returns the command as it runs on the node, and its exit code. object is the object file of a
// load balancer. A watch ends after a second, and commands that ask a question get their answer.
func adapt(command, object string) (executed string, code int) {
	executed = strings.NewReplacer("/usr/lib/lb/lb.o", object, " lb.o", " "+object).Replace(placeholders.Replace(command))
	words := strings.Fields(executed)
	switch {
	case words[0] != "syncd":
	case words[1] == "watch":
		if strings.Contains(executed, "--cluster") {
			executed += " --sum port" // the map has no fields with the role sum
		}
		return fmt.Sprintf("timeout 1 %s --control-socket lb1.sock", executed), 124
	case words[1] == "purge", words[1] == "forget":
		return executed + " --yes", 0
	}
	return executed, 0
}
