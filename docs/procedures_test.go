package docs

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/handbook"
	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// deleteTime is the longest time until a delete by bpf(2) reaches peers, with the scans of the quick start.
const deleteTime = 7 * time.Second

// sessionsOfProcedures is the number of sessions during the procedures. Fewer than 100 deletes are never a clear.
const sessionsOfProcedures = 200

// procedures is a load balancer on two nodes of the quick start, on which the procedures of operations.md are executed.
type procedures struct {
	t     *testing.T
	shell *handbook.Shell
}

// TestProcedures executes the numbered steps of the procedures in operations.md, in order: the commands of the page,
// and between them what the load balancer of lb1 does.
func TestProcedures(t *testing.T) {
	t.Parallel()
	p := &procedures{t, startShell(t, cloneProject(t))}
	runSteps(t, p.shell, "watch-changes")
	run(t, p.shell, onNode, 0)
	p.write()
	for _, procedure := range []struct {
		section string
		before  []func() // what happens before each command of the section, and after the last one
	}{
		{"Enlarging a map", []func(){p.enlarge, func() { p.holds("lb1", sessionsOfProcedures) }}},
		{"Drain a node before maintenance", []func(){
			nil, func() { p.clear(); p.keeps("lb2") }, nil, nil, func() { p.holds("lb1", sessionsOfProcedures) },
		}},
		{"Load balancer that clears its map", []func(){
			func() { p.clear(); p.shows(cleared, true) }, func() { p.keeps("lb2"); p.holds("lb1", sessionsOfProcedures) },
			func() { p.shows(cleared, false); p.clear(); p.shows(cleared, true) },
			func() { p.holds("lb1", 0); p.holds("lb2", 0) },
		}},
	} {
		commands := numberedCommands(t, procedure.section)
		if len(commands) != len(procedure.before)-1 {
			t.Fatalf("commands of %q: got %q, want %d", procedure.section, commands, len(procedure.before)-1)
		}
		for i, before := range procedure.before {
			if before != nil {
				before()
			}
			if i < len(commands) {
				t.Log(commands[i])
				command := strings.Replace(placeholders.Replace(commands[i]), " ct", " ct_map", 1)
				if command == "syncd status" { // there may be problems
					command += " || test $? = 1"
				}
				run(t, p.shell, command, 0)
			}
		}
	}
}

// numberedStep matches a step of a numbered list.
var numberedStep = regexp.MustCompile(`(?m)^\d+\. (.*\n(?:  .*\n)*)`)

// numberedCommands returns the commands of syncd in the numbered steps of a section of operations.md, in order.
func numberedCommands(t *testing.T, title string) (commands []string) {
	t.Helper()
	page, err := handbook.Read("operations.md")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(page.Sections, func(s handbook.Section) bool { return s.Title == title })
	if i < 0 {
		t.Fatalf("operations.md: got no section %q, want one", title)
	}
	for _, item := range numberedStep.FindAllString(page.Sections[i].Prose, -1) {
		for _, span := range handbook.Spans(item) {
			if strings.HasPrefix(span, "syncd ") {
				commands = append(commands, span)
			}
		}
	}
	return commands
}

func (p *procedures) pin(node string) string {
	return filepath.Join(p.shell.Dir(), "quickstart", "bpf", node, "ct_map")
}

// open opens the map of a node. The caller closes it.
func (p *procedures) open(node string) *ebpf.Map {
	p.t.Helper()
	m, err := ebpf.LoadPinnedMap(p.pin(node), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

// write replaces the content of lb1's map by the sessions, and waits until lb2 holds them.
func (p *procedures) write() {
	p.t.Helper()
	p.clear()
	p.holds("lb2", 0)
	m := p.open("lb1")
	defer m.Close()
	for i := range sessionsOfProcedures {
		key, value := binary.BigEndian.AppendUint64(nil, uint64(i+1)), binary.BigEndian.AppendUint64(nil, uint64(i+1)<<16)
		if err := m.Put(key, value); err != nil {
			p.t.Fatal(err)
		}
	}
	p.holds("lb2", sessionsOfProcedures)
}

// clear deletes all entries of lb1's map, as its load balancer would.
func (p *procedures) clear() {
	p.t.Helper()
	m := p.open("lb1")
	defer m.Close()
	var keys [][]byte
	var key, value []byte
	for all := m.Iterate(); all.Next(&key, &value); {
		keys = append(keys, slices.Clone(key))
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil {
			p.t.Fatal(err)
		}
	}
}

// enlarge replaces lb1's map by an empty one with twice the capacity.
func (p *procedures) enlarge() {
	p.t.Helper()
	p.resize("lb1", func(entries uint32) uint32 { return 2 * entries })
}

// resize replaces the map of a node by an empty one.
func (p *procedures) resize(node string, entries func(uint32) uint32) {
	p.t.Helper()
	old := p.open(node)
	defer old.Close()
	info, err := old.Info()
	if err != nil {
		p.t.Fatal(err)
	}
	id, _ := info.BTFID()
	h, err := btf.NewHandleFromID(id)
	if err != nil {
		p.t.Fatal(err)
	}
	defer h.Close()
	types, err := h.Spec(nil)
	if err != nil {
		p.t.Fatal(err)
	}
	spec := ebpf.MapSpec{Type: info.Type, KeySize: info.KeySize, ValueSize: info.ValueSize, MaxEntries: entries(info.MaxEntries), Flags: info.Flags}
	for name, typ := range map[string]*btf.Type{"session_key": &spec.Key, "session": &spec.Value} {
		if *typ, err = types.AnyTypeByName(name); err != nil {
			p.t.Fatal(err)
		}
	}
	spec.Name = "ct_map"
	larger, err := ebpf.NewMap(&spec)
	if err != nil {
		p.t.Fatal(err)
	}
	defer larger.Close()
	next := p.pin(node) + "_next"
	if err := larger.Pin(next); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(next, p.pin(node)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *procedures) entries(node string) (n int) {
	m := p.open(node)
	defer m.Close()
	var key, value []byte
	for all := m.Iterate(); all.Next(&key, &value); {
		n++
	}
	return n
}

// holds waits until the map of a node has n entries.
func (p *procedures) holds(node string, n int) {
	p.t.Helper()
	poll.Eventually(p.t, fmt.Sprintf("map of %s has %d entries", node, n), func() bool { return p.entries(node) == n },
		func() any { return p.entries(node) })
}

// keeps fails if the map of a node loses an entry within the time in which a delete would arrive.
func (p *procedures) keeps(node string) {
	p.t.Helper()
	poll.Stays(p.t, deleteTime, "map of "+node+" keeps its entries", func() bool { return p.entries(node) == sessionsOfProcedures },
		func() any { return p.entries(node) })
}

// cleared is a part of the problem that syncd shows after a clear.
const cleared = "were cleared"

// shows waits until the status of lb1 has a text, or lacks it.
func (p *procedures) shows(text string, present bool) {
	p.t.Helper()
	not := "! "
	if present {
		not = ""
	}
	run(p.t, p.shell, fmt.Sprintf("for i in $(seq 100); do s=$(syncd status || true); %sgrep '%s' <<<\"$s\" && break; sleep 0.2; done; %sgrep '%s' <<<\"$s\"",
		not, text, not, text), 0)
}
