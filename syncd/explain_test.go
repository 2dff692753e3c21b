package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"mapsync/printable"
	"mapsync/syncd/daemon"
	"mapsync/syncd/events"
)

// TestExplanationsArePrinted: one line for each node, values and reasons below, and whether all is well.
func TestExplanationsArePrinted(t *testing.T) {
	at := time.Date(2026, 11, 22, 15, 31, 2, 117, time.UTC)
	node := func(name string, record daemon.RecordState, kernel daemon.KernelState) nodeKey {
		k := &daemon.ExplainedKey{Record: record, Kernel: kernel}
		if record != daemon.RecordNone {
			k.Owner, k.Version, k.Changed = "lb1", 7, at
		}
		return nodeKey{Node: name, ExplainedKey: k}
	}
	live := node("lb1", daemon.RecordLive, daemon.KernelSame)
	for name, test := range map[string]struct {
		nodes []nodeKey
		held  bool
	}{
		"all have it":               {[]nodeKey{live, node("lb2", daemon.RecordLive, daemon.KernelSame)}, true},
		"a kernel map lacks it":     {[]nodeKey{live, node("lb2", daemon.RecordLive, daemon.KernelAbsent)}, false},
		"a kernel map differs":      {[]nodeKey{live, node("lb2", daemon.RecordLive, daemon.KernelDiffers)}, false},
		"a node lacks it":           {[]nodeKey{live, node("lb2", daemon.RecordNone, daemon.KernelAbsent)}, false},
		"a node has a tombstone":    {[]nodeKey{live, node("lb2", daemon.RecordDeleted, daemon.KernelAbsent)}, false},
		"a node does not answer":    {[]nodeKey{live, {Node: "lb2", Error: "lost"}}, false},
		"the first does not answer": {[]nodeKey{{Node: "lb2", Error: "lost"}, live}, false},
		"no node has it":            {[]nodeKey{node("lb1", daemon.RecordNone, daemon.KernelAbsent)}, false},
		"it has ended":              {[]nodeKey{node("lb1", daemon.RecordDeleted, daemon.KernelAbsent), node("lb2", daemon.RecordNone, daemon.KernelAbsent)}, true},
		"it has expired":            {[]nodeKey{node("lb1", daemon.RecordExpired, daemon.KernelPresent), node("lb2", daemon.RecordExpired, daemon.KernelAbsent)}, true},
		"a kernel map has it still": {[]nodeKey{node("lb1", daemon.RecordDeleted, daemon.KernelPresent), node("lb2", daemon.RecordNone, daemon.KernelAbsent)}, false},
	} {
		if e := (explanation{Nodes: test.nodes}); e.held() != test.held {
			t.Errorf("%s: got held %t, want %t", name, !test.held, test.held)
		}
	}
	other := node("lb2", daemon.RecordLive, daemon.KernelSame)
	if other.Version++; (&explanation{Nodes: []nodeKey{live, other}}).held() {
		t.Error("two versions: got held, want not")
	}

	lacks := node("lb2", daemon.RecordNone, daemon.KernelPresent)
	live.Value, lacks.KernelValue, lacks.Reasons = "{state=CT_OPEN}", "{state=CT_NEW}", []string{"this node cannot hold it as lb1 sends it: " + strings.Repeat("why ", 40)}
	lacks.Events = []events.Event{{Time: at, Level: "warn", Message: "cannot store entries of peer", Map: "ct"}}
	var out strings.Builder
	list := explanations{{Key: "{sport=1}", Nodes: []nodeKey{live, lacks, {Node: "lb3", Error: "lost 3 s ago\x1b"}}}}
	if err := list.report(printable.NewWriter(&out), true, false); !errors.Is(err, errReported) {
		t.Errorf("explanation: got error %v, want that it is reported", err)
	}
	for _, want := range []string{
		"key {sport=1}\n",
		"NODE  RECORD     KERNEL MAP  OWNER  CHANGED\n",
		"lb1   live       same        lb1    2026-11-22T15:31:02.000000117Z\n",
		"lb2   none       present     -      -\n",
		"lb3   NO ANSWER  -           -      -\n",
		"lb1: record {state=CT_OPEN}\n",
		"lb2: kernel map {state=CT_NEW}\n",
		"lb2: this node cannot hold it as lb1 sends it: ",
		"lb2: event 2026-11-22T15:31:02.000Z WARN cannot store entries of peer map=ct\n",
		"lb3: no answer: lost 3 s ago\\u001b\n",
		"only the first 10 entries are explained",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("explanation: want %q in\n%s", want, out.String())
		}
	}
	wantLines(t, out.String())
	out.Reset()
	if err := list[:1].report(&out, false, true); !errors.Is(err, errReported) || !strings.HasPrefix(out.String(), `{"key":"{sport=1}","nodes":[{"node":"lb1",`) {
		t.Errorf("explanation as JSON: got error %v and %s, want the key and its nodes", err, out.String())
	}
}
