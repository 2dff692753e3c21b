package main

import (
	"fmt"
	"strings"
	"testing"

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
		printProblems(&out, list, all)
		if n := strings.Count(out.String(), "invented-"); n != want || !strings.Contains(out.String(), "disk is full") {
			t.Errorf("60 problems alike, all %v: got %d of them, want %d and the other problem:\n%s", all, n, want, out.String())
		}
		if rest := strings.Contains(out.String(), "52 more with the id gossip-invalid"); rest == all {
			t.Errorf("line about the others, all %v: got %v, want %v", all, rest, !all)
		}
	}
}
