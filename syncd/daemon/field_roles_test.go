package daemon_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// roleProblems returns the fields with a problem of their role, with its severity.
func roleProblems(s *daemon.Status) (list []string) {
	for _, p := range s.Problems {
		if p.ID == "field-role" {
			list = append(list, p.Subject+" "+string(p.Severity))
		}
	}
	return list
}

// TestFieldsWithoutRoles: fields that name an interface, and contain the indexes of this node's interfaces, are a problem, and with
// strict-roles the node does not become ready until they have their role. The peer has no entries of its own.
func TestFieldsWithoutRoles(t *testing.T) {
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1 := typed(t, path1, linkKey, linkValueV1, 1000)
	typed(t, path2, linkKey, linkValueV1, 1000)
	for i := range uint64(200) {
		k, v := portSession(linkValueV1, i, 1) // the index of lo
		if err := m1.Put(k, v); err != nil {
			t.Fatal(err)
		}
	}
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	n1.config.StrictRoles = true
	n1.start()
	n2.start()
	poll.Eventually(t, "n1 reports the fields", func() bool {
		s := n1.status()
		return slices.Equal(roleProblems(&s), []string{"key.ifindex warning", "oif warning"})
	})
	shown := n1.shows("field-role", problem.Warning, "the field oif seems to need the role ifindex")
	poll.Eventually(t, "n2 is ready", func() bool { return n2.status().Ready })
	poll.Eventually(t, "n1 waits for the roles", func() bool {
		s := n1.status()
		return !s.Ready && strings.Contains(strings.Join(s.NotReady, "; "), "strict-roles): key.ifindex, oif")
	})
	if want := "'ct:oif=ifindex'"; !strings.Contains(shown.Remedy, want) {
		t.Errorf("remedy: got %q, want it to contain %q", shown.Remedy, want)
	}

	for _, n := range []*node{n1, n2} {
		next := n.config
		next.Fields = []string{"ct:key.ifindex=ifindex", "ct:oif=none"}
		if _, err := n.reload(next); err != nil {
			t.Fatal(err)
		}
	}
	n1.ends("field-role")
	poll.Eventually(t, "both nodes are ready", func() bool { return n1.status().Ready && n2.status().Ready })
}
