package docs

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/problem"
)

// remedyStep is a command of a remedy, or, if operator is set, what the operator does besides it.
type remedyStep struct {
	command  string
	exit     int
	operator bool
}

// listing returns a command that shows the cause, with the exit code of a command that reports problems.
func listing(command string, exit int) remedyStep { return remedyStep{command: command, exit: exit} }

func remedy(command string) remedyStep { return remedyStep{command: command} }

func operator(command string) remedyStep { return remedyStep{command: command, operator: true} }

// remedyCase is a problem of a node of the quick start, whose remedy is executed.
type remedyCase struct {
	id    string
	fault func(*remedies)
	steps []remedyStep
	peer  bool // the commands run on the peer lb2
	after func(*remedies)
}

// remediesNotRun lists the problems whose remedy has a command that TestRemedies does not execute, with the reason.
var remediesNotRun = map[string]string{
	"clock":                "the command changes the clock of the host. TestClockProblemsAreReported has the fault",
	"memory-corrupt":       "only damaged memory causes it",
	"scan-failing":         "the command reads the journal of the unit, and a test cannot make the kernel refuse a read",
	"stream-missing":       "netcat, and filters of packets that break a stream, are not installed on all machines. syncd/daemon has the fault",
	"field-role":           "the fields of the quick start have their roles. syncd/daemon has the fault",
	"reference-unreadable": "the maps of the quick start have no references. syncd/daemon has the fault",
	"in-place-unavailable": "it depends on the hooks of the kernel",
	"unsent-entries":       "the entries of the quick start have no padding. syncd/daemon has the fault",
	"peer-unsent-entries":  "as unsent-entries",
	"refused-entries":      "both nodes of the quick start have the same types. syncd/daemon has the fault",
	"divergent":            "repair ends it before a command could. syncd/replicate has the fault",
	"false-digests":        "only a hostile peer causes it. syncd/replicate has the fault",
	"stream-refused":       "it lasts 2 min after the last event",
}

// remedyCases are in the order of their execution: later ones restart syncd.
var remedyCases = []remedyCase{
	{id: "drained", fault: shell("syncd drain --timeout 60s"), steps: []remedyStep{remedy("syncd drain --undo")}},
	{id: "scans-paused", fault: shell("syncd scans pause --for 10m"), steps: []remedyStep{remedy("syncd scans resume")}},
	{id: "map-paused", fault: shell("syncd pause ct_map"), steps: []remedyStep{remedy("syncd resume ct_map")}},
	{id: "map-cleared", fault: (*remedies).clearMap, steps: []remedyStep{remedy("syncd clears restore ct_map")}, after: func(r *remedies) {
		r.holds("lb1", sessionsOfProcedures)
	}},
	{id: "map-cleared", fault: func(r *remedies) { r.clear() }, steps: []remedyStep{remedy("syncd clears release ct_map")}, after: func(r *remedies) {
		r.holds("lb2", 0)
	}},
	{id: "settings-not-reloaded", fault: func(r *remedies) { run(r.t, r.shell, "echo 'scan-budgett: 1' >>lb1.yaml; syncd reload", 2) }, steps: []remedyStep{
		listing("syncd check --config /etc/mapsync/syncd.yaml", 2), operator("sed -i /scan-budgett/d lb1.yaml"), remedy("syncd reload"),
	}},
	{id: "state-not-saved", fault: shell("mount -t tmpfs -o ro none lb1.state; rm bpf/lb1/ct_map; sessions create bpf/lb1/ct_map"), steps: []remedyStep{
		remedy("df lb1.state"), operator("umount lb1.state"),
	}},
	{id: "state-not-read", fault: shell("echo >>lb1.state/lb1.state.json; restart 1"), steps: []remedyStep{remedy("df lb1.state"), operator("restart 1")}},
	{id: "map-missing", fault: shell("rm bpf/lb1/ct_map"), steps: []remedyStep{remedy("syncd maps"), operator("sessions create bpf/lb1/ct_map")}},
	{id: "map-refused", fault: shell("rm bpf/lb1/ct_map; ln -s ../lb2/ct_map bpf/lb1/ct_map"), steps: []remedyStep{
		listing("syncd check --config /etc/mapsync/syncd.yaml", 2), operator("rm bpf/lb1/ct_map; sessions create bpf/lb1/ct_map"),
	}},
	{id: "restart-needed", fault: shell("sed -i 's/^scan-interval: 1s/scan-interval: 2s/' lb1.yaml; syncd reload"), steps: []remedyStep{
		remedy("systemctl restart syncd"),
	}},
	{id: "map-unserved", peer: true, fault: shell("restart 2 ct_map other_map"), steps: []remedyStep{
		listing("syncd status --problems", 1), operator("restart 2 other_map ct_map"),
	}},
	{id: "not-held", fault: func(r *remedies) { r.write(); r.resize("lb2", func(uint32) uint32 { return sessionsOfProcedures / 2 }) }, steps: []remedyStep{
		listing("syncd diff ct_map", 1), operator("rm bpf/lb2/ct_map; sessions create bpf/lb2/ct_map"),
	}, after: func(r *remedies) { r.holds("lb2", sessionsOfProcedures) }},
}

// shell returns a fault that commands of the shell bring about.
func shell(commands string) func(*remedies) {
	return func(r *remedies) { run(r.t, r.shell, commands, 0) }
}

// onUnit is a function that restarts syncd on a node, after a replacement in its settings, and one that restarts the unit of lb1.
const onUnit = `
restart() {
	local of=lb$1
	kill "${!of}" && { wait "${!of}" || :; }
	sed -i "/^map:/s/${2:-^}/$3/" "$of.yaml"
	command syncd run --config "$of.yaml" 2>>"$of.log" &
	printf -v "$of" %s "$!"
	until command syncd status --json --control-socket "$of.sock" >/dev/null 2>&1 || [ $? = 1 ]; do sleep 0.1; done
}
systemctl() { [ "$*" = "restart syncd" ] && restart 1; }`

// remedies is the quick start with its nodes.
type remedies struct{ *procedures }

// TestRemedies brings problems about, reads their remedies from syncd, executes the commands of the remedies, and sees the problems
// end.
func TestRemedies(t *testing.T) {
	t.Parallel()
	r := &remedies{&procedures{t, startShell(t, cloneProject(t))}}
	t.Cleanup(func() { // a test that fails leaves it mounted
		_ = syscall.Unmount(filepath.Join(r.shell.Dir(), "quickstart", "lb1.state"), syscall.MNT_DETACH)
	})
	runSteps(t, r.shell, "watch-changes")
	run(t, r.shell, onNode+onUnit, 0)
	for _, c := range remedyCases {
		t.Logf("problem %s", c.id)
		c.fault(r)
		p := r.begins(c.id)
		for _, step := range c.steps {
			if !step.operator && !strings.Contains(p.Remedy, step.command) {
				t.Errorf("%s: got remedy %q, want the command %q", c.id, p.Remedy, step.command)
			}
			command := strings.ReplaceAll(step.command, "/etc/mapsync/syncd.yaml", "lb1.yaml")
			if c.peer && !step.operator {
				command = "command " + command + " --control-socket lb2.sock"
			}
			run(t, r.shell, command, step.exit)
		}
		r.end(c.id)
		if c.after != nil {
			c.after(r)
		}
	}
}

// TestEachRemedyIsExecuted: TestRemedies executes each command of each remedy, or a table has the reason why not.
func TestEachRemedyIsExecuted(t *testing.T) {
	reasons := maps.Clone(remediesNotRun)
	for _, k := range problem.Kinds {
		count := 0
		for _, n := range commandsIn(k.Remedy) {
			count += n
		}
		executed := make(map[string]bool)
		for _, c := range remedyCases {
			for _, step := range c.steps {
				if c.id == k.ID && !step.operator {
					executed[step.command] = true
				}
			}
		}
		reason := reasons[k.ID]
		delete(reasons, k.ID)
		if (len(executed) == count) == (reason != "") && count > 0 {
			t.Errorf("%s: remedy %q has %d commands, got %q executed and reason %q, want all of them or a reason", k.ID, k.Remedy, count, slices.Collect(maps.Keys(executed)), reason)
		}
	}
	for id, reason := range reasons {
		t.Errorf("%s: got no such problem, want one whose remedy does not run: %s", id, reason)
	}
}

// clearMap writes sessions, and deletes them as a load balancer that starts.
func (r *remedies) clearMap() {
	r.write()
	r.clear()
}

// problems returns the problems of lb1.
func (r *remedies) problems() (list []problem.Problem) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	result, err := r.shell.Run(ctx, "syncd status --problems --json")
	if err != nil {
		r.t.Fatal(err)
	}
	_ = json.Unmarshal([]byte(result.Output), &list) // a daemon that does not answer has none
	return list
}

func (r *remedies) find(id string) *problem.Problem {
	list := r.problems()
	if i := slices.IndexFunc(list, func(p problem.Problem) bool { return p.ID == id }); i >= 0 {
		return &list[i]
	}
	return nil
}

func (r *remedies) begins(id string) (p *problem.Problem) {
	r.t.Helper()
	poll.Within(r.t, time.Minute, fmt.Sprintf("problem %s begins", id), func() bool { p = r.find(id); return p != nil }, func() any { return r.problems() })
	return p
}

func (r *remedies) end(id string) {
	r.t.Helper()
	poll.Within(r.t, time.Minute, fmt.Sprintf("problem %s ends", id), func() bool {
		ready, err := r.shell.Run(r.t.Context(), "syncd wait-ready --timeout 0s")
		return err == nil && ready.Exit == 0 && r.find(id) == nil
	}, func() any { return r.problems() })
}
