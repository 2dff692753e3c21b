package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// TestManyProblemsAlike: an attacker with the gossip key invents names, each of which is a problem.
func TestManyProblemsAlike(t *testing.T) {
	list := []problem.Problem{{ID: "state-unsaved", Text: "disk is full"}}
	for i := range 60 {
		list = append(list, problem.Problem{ID: "gossip-invalid", Peer: fmt.Sprint("invented-", i), Text: "too many node names"})
	}
	for all, want := range map[bool]int{false: maxAlike, true: 60} {
		var out strings.Builder
		problemOutput{all: all}.print(&out, list)
		if n := strings.Count(out.String(), "invented-"); n != want || !strings.Contains(out.String(), "disk is full") {
			t.Errorf("60 problems alike, all %v: got %d of them, want %d and the other problem:\n%s", all, n, want, out.String())
		}
		if rest := strings.Contains(out.String(), "52 more with the id gossip-invalid"); rest == all {
			t.Errorf("line about the others, all %v: got %v, want %v", all, rest, !all)
		}
	}
}

// TestProblemsNameTheirDocumentation: syncd status --problems has the section of night.md after each remedy, and lines of at most
// 100 columns.
func TestProblemsNameTheirDocumentation(t *testing.T) {
	list := problem.NewList(slog.New(slog.DiscardHandler))
	found := make([]problem.Problem, len(problem.Kinds))
	for i := range problem.Kinds {
		found[i] = problem.Problem{ID: problem.Kinds[i].ID, Map: "connections", Peer: "lb2.example", Subject: "10.0.0.1:7947", Text: strings.Repeat("reason ", 30)}
	}
	list.Set(found, time.Now(), true)
	for _, problems := range []bool{true, false} {
		var out strings.Builder
		o := statusOutput{problems: problems}
		if err := o.report(&out, &daemon.Status{Problems: list.All()}); !errors.Is(err, errReported) {
			t.Fatalf("report: got error %v, want errReported", err)
		}
		for line := range strings.Lines(out.String()) {
			if n := len(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("%q: got %d columns, want at most %d", line, n, width)
			}
		}
		for _, k := range problem.Kinds {
			if documented := strings.Contains(out.String(), "\n  documentation: docs/night.md#"+k.ID+"\n"); documented != problems {
				t.Errorf("%s, --problems %v: documentation %v, want %v:\n%s", k.ID, problems, documented, problems, out.String())
			}
		}
	}
}
