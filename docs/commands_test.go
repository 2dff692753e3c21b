package docs

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/handbook"
)

// commandPages are the pages whose commands run on a node of the quick start.
var commandPages = []string{"../README.md", "concepts.md", "troubleshooting.md", "schema.md"}

// programs are the programs whose commands run. Others need systemd, a real network or a clock that
// another program controls.
var programs = []string{"syncd", "openssl", "ls", "readlink", "sha256sum", "df"}

// notRun lists the commands of these programs that do not run, with the reason.
var notRun = map[string]string{
	"syncd run --config /etc/mapsync/syncd.yaml":              "the node runs already",
	"openssl crl -in /etc/mapsync/crl.pem -noout -nextupdate": "the cluster has no revocation list",
	"openssl crl -in /etc/mapsync/crl.pem -noout -text":       "the cluster has no revocation list",
}

// TestCommandsOnPagesRun executes the commands of the other pages on a node of the quick start. Each of
// them succeeds. It does not compare outputs, because the pages show those of larger clusters.
func TestCommandsOnPagesRun(t *testing.T) {
	t.Parallel()
	commands := pageCommands(t)
	for command, reason := range notRun {
		if !slices.Contains(commands, command) {
			t.Errorf("no page contains %q, which is not run because %s", command, reason)
		}
	}
	shell := startShell(t, cloneProject(t))
	runSteps(t, shell, "watch-changes")
	object, err := filepath.Abs("../bench/lb/bpf/lb_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	run(t, shell, onNode, 0)
	ran := 0
	for _, command := range commands {
		if notRun[command] != "" {
			continue
		}
		ran++
		executed, code := adapt(command, object)
		run(t, shell, executed, code)
		if strings.HasPrefix(command, "syncd drain") {
			run(t, shell, "syncd drain --undo", 0)
		}
	}
	if ran < 30 {
		t.Errorf("%d commands were found, want at least 30", ran)
	}
}

// onNode is a function that adds the control socket of node lb1 to the commands of its daemon.
const onNode = `
syncd() {
	case $1 in
	check | maps | schema | version) command syncd "$@" ;;
	*) command syncd "$@" --control-socket lb1.sock ;;
	esac
}`

func run(t *testing.T, shell *handbook.Shell, command string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := shell.Run(ctx, command)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, r.Output)
	}
	t.Logf("%s: exit code %d", command, r.Exit)
	if r.Exit != code {
		t.Errorf("%s: exit code %d, want %d\n%s", command, r.Exit, code, r.Output)
	}
}

// pageCommands returns the commands of the pages, each once, sorted.
func pageCommands(t *testing.T) (commands []string) {
	t.Helper()
	for _, path := range commandPages {
		page, err := handbook.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for i := range page.Sections {
			s := &page.Sections[i]
			for _, line := range append(handbook.Spans(s.Prose), s.Code...) {
				line, _, _ = strings.Cut(line, " #")
				words := strings.Fields(line)
				if len(words) > 1 && slices.Contains(programs, words[0]) {
					commands = append(commands, strings.Join(words, " "))
					found++
				}
			}
		}
		if found == 0 {
			t.Errorf("%s: no commands were found", path)
		}
	}
	slices.Sort(commands)
	return slices.Compact(commands)
}

// placeholders replaces the names of the pages by those of the quick start. In one kernel, the maps of
// both nodes have the same name, so that schema needs a pin.
var placeholders = strings.NewReplacer(
	"MAP", "ct_map",
	"--peer NODE", "--peer lb2",
	"--owner NODE", "--owner lb3",
	"/etc/mapsync/syncd.yaml", "lb1.yaml",
	"/etc/mapsync/", "",
	"/run/mapsync", "lb1.state",
	"/sys/fs/bpf/lb/", "bpf/lb1/",
	"schema show MAP", `schema show "$PWD/bpf/lb1/ct_map"`,
	"schema show ct_map", `schema show "$PWD/bpf/lb1/ct_map"`,
	"schema export ct_map", `schema export "$PWD/bpf/lb1/ct_map"`,
)

// adapt returns the command as it runs on the node, and its exit code. object is the object file of a
// load balancer. A watch ends after a second, and commands that ask a question get their answer.
func adapt(command, object string) (executed string, code int) {
	executed = strings.NewReplacer("/usr/lib/lb/lb.o", object, " lb.o", " "+object).Replace(placeholders.Replace(command))
	switch words := strings.Fields(executed); {
	case words[0] != "syncd":
	case words[1] == "watch":
		return fmt.Sprintf("timeout 1 %s --control-socket lb1.sock", executed), 124
	case words[1] == "purge", words[1] == "forget":
		return executed + " --yes", 0
	}
	return executed, 0
}
