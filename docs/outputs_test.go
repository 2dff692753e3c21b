package docs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"mapsync/internal/handbook"
)

// misspelled is the settings file whose check operations.md shows.
const misspelled = `map: [id:1]
join: ['127.0.0.1:7946']
metrics-listen: 127.0.0.1:9746
sync-timeout: 10s
scan-intervall: 5s
`

// shownCommands maps each command whose output is on a page to the command that runs in the test. LB is
// the object file of a load balancer.
var shownCommands = map[string]string{
	"syncd check --config /etc/mapsync/syncd.yaml": "syncd check --config misspelled.yaml 2>&1 | sed s,misspelled.yaml,/etc/mapsync/syncd.yaml,",
	"syncd status":                        "syncd status --control-socket lb1.sock",
	"syncd status --problems":             "syncd status --problems --control-socket lb1.sock",
	listEvents:                            listEvents + " --control-socket lb1.sock",
	"syncd drain --timeout 60s":           "syncd drain --timeout 60s --control-socket lb1.sock | sed '/^waiting: /d'",
	"syncd schema show lb.o --map ct_map": "syncd schema show LB --map ct_map",
	measureLatency:                        "syncd latency --for 1s --control-socket lb1.sock 2>&1 | sed -E 's/" + measuredRow + "/NAME/' | uniq",
}

// listEvents lists the beginnings of problems, which have a delay.
const listEvents = "syncd events --cluster --since 10m"

// measureLatency prints rows with the names of what ran on the host meanwhile. Their names and number may differ from those on
// the page: measuredRow matches a row.
const (
	measureLatency = "syncd latency --for 5s"
	measuredRow    = `^[A-Za-z0-9_.]+( +[0-9.]+)+$`
)

// measuredRows matches the rows of one part of an output.
var measuredRows = regexp.MustCompile(`(?m)(` + measuredRow + `\n?)+`)

// TestOutputsOnPages executes each command for which a page other than the quick start shows the output,
// and compares the shape of both: lines, columns, labels and words. The nodes are those of operations.md.
func TestOutputsOnPages(t *testing.T) {
	t.Parallel()
	steps := shownSteps(t)
	shell := startShell(t, cloneProject(t))
	runSteps(t, shell, "create-a-map-on-each-node")
	if err := os.WriteFile(filepath.Join(shell.Dir(), "quickstart", "misspelled.yaml"), []byte(misspelled), 0o600); err != nil {
		t.Fatal(err)
	}
	startThree(t, shell)
	shown := make(map[string]bool)
	for _, s := range steps {
		shown[s.command] = true
		runShown(t, shell, s)
	}
	for command := range shownCommands {
		if !shown[command] {
			t.Errorf("%s: no page shows the output, want a block \"text\" after the block \"sh\"", command)
		}
	}
}

// shownStep is a step with an output, of a page.
type shownStep struct {
	handbook.Step
	page, command string
}

// shownSteps returns the steps with an output of all pages but the quick start, in page order.
func shownSteps(t *testing.T) (list []shownStep) {
	t.Helper()
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(pages, "../README.md", "report/README.md") {
		page, err := handbook.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		steps, err := page.Steps()
		if err != nil {
			t.Fatalf("steps of %s: got %v, want none that is invalid", path, err)
		}
		for _, step := range steps {
			if step.Shown && path != "quickstart.md" {
				list = append(list, shownStep{Step: step, page: path, command: strings.TrimSpace(step.Commands)})
			}
		}
	}
	return list
}

// runShown executes a step and compares the shape of its output. The state of the nodes changes meanwhile,
// so that the status is read until it has that shape.
func runShown(t *testing.T, shell *handbook.Shell, s shownStep) {
	t.Helper()
	executed := shownCommands[s.command]
	if executed == "" {
		t.Errorf("%s, line %d: %q is unknown, want commands with an output among those of the test", s.page, s.Line, s.command)
		return
	}
	object, err := filepath.Abs("../bench/lb/bpf/lb_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	s.Commands, s.Shape = "set -o pipefail\n"+strings.ReplaceAll(executed, "LB", object)+"\n", true
	s.Retry = strings.HasPrefix(s.command, "syncd status") || s.command == listEvents
	if s.command == measureLatency {
		s.Output = measuredRows.ReplaceAllString(s.Output, "NAME\n")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begun := time.Now()
	if err := shell.RunStep(ctx, s.Step); err != nil {
		t.Errorf("%s, line %d: got %v, want no error", s.page, s.Line, err)
	}
	t.Logf("%s, line %d: %v", s.page, s.Line, time.Since(begun).Round(time.Millisecond))
}

// startThree starts the nodes of the status in operations.md: lb2 has a smaller map and an older layout
// than lb1, and lb3 fails. The map of lb1 has 301 entries that lb2 can represent, one more than fit there, and another one. lb2
// holds enough of them to take over.
func startThree(t *testing.T, shell *handbook.Shell) {
	t.Helper()
	maps := [3]*ctMap{newMap(t, 1000, 8), newMap(t, 300, 4), newMap(t, 1000, 8)}
	script := "../scripts/make-credentials lb3 >credentials.log\n"
	for i, m := range maps {
		script += fmt.Sprintf("cat >lb%[1]d.yaml <<EOF\n"+threeSettings+"EOF\nsyncd run --config lb%[1]d.yaml 2>lb%[1]d.log &\nlast=$!\n", i+1, m.id(t))
	}
	for i := range maps {
		script += fmt.Sprintf("syncd wait-ready --control-socket lb%d.sock\n", i+1)
	}
	run(t, shell, script, 0)
	for i := range 301 {
		maps[0].put(t, i, 1)
	}
	maps[0].put(t, 301, 1<<40)
	run(t, shell, `kill -KILL "$last"`, 0)
}

// threeSettings are the settings of a node, by its number and the id of its map.
const threeSettings = `map: ['ct=id:%[2]d']
attach: $attach
scan-interval: 1s
cluster: edge
node-name: lb%[1]d
expected-peers: [lb1, lb2, lb3]
join: ['127.0.0.11:7946', '127.0.0.12:7946']
gossip-listen: 127.0.0.1%[1]d:7946
gossip-key-file: gossip.key
grpc-listen: 127.0.0.1%[1]d:7947
tls-cert: lb%[1]d.crt
tls-key: lb%[1]d.key
tls-ca: ca.crt
metrics-listen: 127.0.0.1%[1]d:9746
control-socket: lb%[1]d.sock
state-dir: lb%[1]d.state
`
