package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

// explained returns what each node has of a key, as record, kernel map and reasons, or why it does not answer.
func (n *node) explained(name string, q daemon.ExplainQuery) map[string]string {
	n.t.Helper()
	a, err := n.client.ClusterExplain(n.t.Context(), name, q)
	if err != nil {
		n.t.Fatal(err)
	}
	found := make(map[string]string)
	for _, x := range a.Nodes {
		var e daemon.Explanation
		switch err := json.Unmarshal(x.Answer, &e); {
		case x.Error != "":
			found[x.Node] = "error " + x.Error
		case err != nil:
			n.t.Errorf("explanation of %s: got %s, want an Explanation: %v", x.Node, x.Answer, err)
		case len(e.Keys) != 1:
			found[x.Node] = fmt.Sprint(len(e.Keys), " keys, more ", e.More)
		default:
			k := &e.Keys[0]
			found[x.Node] = strings.Join(append([]string{string(k.Record), string(k.Kernel), k.Owner}, k.Reasons...), " | ")
		}
	}
	return found
}

// TestExplain: where a key is in a cluster of three nodes whose maps have room for all entries, for some of them, and evict some. Any node
// answers.
func TestExplain(t *testing.T) {
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	dir := pinDir(t)
	var nodes []*node
	var maps []*ebpf.Map
	for i, spec := range []*ebpf.MapSpec{{MaxEntries: 1000, Type: ebpf.Hash}, {MaxEntries: 350, Type: ebpf.Hash}, {MaxEntries: 1000, Type: ebpf.LRUHash}} {
		pin := filepath.Join(dir, fmt.Sprint("ct", i+1))
		spec.Name, spec.KeySize, spec.ValueSize = "ct", 8, 8
		maps = append(maps, pinnedAs(t, pin, spec))
		n := newNode(t, i+1, "ct="+pin)
		n.secure(ca, testcert.Options{}, 1)
		n.config.ScanInterval, n.config.MaxScanInterval = time.Hour, time.Hour
		nodes = append(nodes, n)
		n.start()
	}
	poll.Eventually(t, "all nodes know each other", func() bool {
		return len(nodes[0].status().Peers) == 2 && len(nodes[1].status().Peers) == 2 && len(nodes[2].status().Peers) == 2
	})
	nodes[0].write(maps[0], 0, 400, 7)
	want := func(i uint64, answers ...string) {
		t.Helper()
		key, _ := pair(i, 0)
		for _, asked := range nodes {
			for _, q := range []daemon.ExplainQuery{{Keys: []string{fmt.Sprintf("%x", key)}}, {Where: []string{fmt.Sprintf("key.bytes=%x", key)}}} {
				if len(q.Where) > 0 && strings.HasPrefix(answers[0], "none") {
					continue // no node finds it
				}
				poll.Eventually(t, fmt.Sprintf("key %d is explained by %s, %v", i, asked.config.NodeName, q), func() bool {
					got := asked.explained("ct", q)
					for i, answer := range answers {
						if got[fmt.Sprint("n", i+1)] != answer {
							return false
						}
					}
					return true
				}, func() any { return asked.explained("ct", q) })
			}
		}
	}
	const live = "live | same | n1"
	want(300, live, live, live)
	want(10, live, "live | absent | n1 | the kernel map has refused 50 entries, of which this may be one, the latest because of: full", live)
	want(1000, "none | absent | ", "none | absent | ", "none | absent | ")

	// A delete is known to all nodes.
	nodes[0].applyEntries(maps[0], 1, func(int) (key, value []byte) { key, _ = pair(300, 0); return key, nil })
	want(300, "deleted | absent | n1", "deleted | absent | n1", "deleted | absent | n1")

	// No hook shows what happens to the map of the third node: it has another value of one key, lacks one, and has one more.
	k350, v350 := pair(350, 9)
	k351, _ := pair(351, 0)
	k2000, v2000 := pair(2000, 9)
	if err := errors.Join(maps[2].Put(k350, v350), maps[2].Delete(k351), maps[2].Put(k2000, v2000)); err != nil {
		t.Fatal(err)
	}
	want(350, live, live, "live | differs | n1")
	want(351, live, live, "live | absent | n1 | the LRU map has evicted it, or a program has deleted it")
	want(2000, "none | absent | ", "none | absent | ", "none | present |  | no hook has shown the entry of the kernel map; the next scan adds it, unless max-records-factor limits the table")

	// Many entries meet a condition.
	if got := nodes[1].explained("ct", daemon.ExplainQuery{Where: []string{"value.bytes!=00"}})["n1"]; got != "10 keys, more true" {
		t.Errorf("a condition that many entries meet: got %s, want 10 keys and that there are more", got)
	}
	// Wrong questions are wrong use.
	for _, q := range []daemon.ExplainQuery{{}, {Where: []string{"nonsense=1"}}, {Keys: make([]string, daemon.MaxExplained+1)}} {
		if _, err := nodes[0].client.ClusterExplain(t.Context(), "ct", q); !errors.Is(err, daemon.ErrUse) {
			t.Errorf("question %+v: got error %v, want wrong use", q, err)
		}
	}
	if _, err := nodes[0].client.ClusterExplain(t.Context(), "a/b?", daemon.ExplainQuery{Keys: []string{"{}"}}); !errors.Is(err, daemon.ErrUse) {
		t.Errorf("unknown map: got error %v, want wrong use", err)
	}
}

// TestExplainRefusals: an entry that a node cannot hold, and one that a node cannot send, have the reason.
func TestExplainRefusals(t *testing.T) {
	nodes := newPortNodes(t)
	sender, receiver := nodes[0], nodes[1]
	receiver.removeUplink()
	sender.write(1)
	key := daemon.ExplainQuery{Keys: []string{fmt.Sprintf("{id=%d}", lostSession)}}
	want := func(what string, n *portNode, name string, q daemon.ExplainQuery, node, part string) {
		t.Helper()
		poll.Eventually(t, what, func() bool { return strings.Contains(n.explained(name, q)[node], part) }, func() any { return n.explained(name, q) })
	}
	want("the receiver cannot hold the value", sender, "value", key, "n2", "none | absent |  | this node cannot hold it as n1 sends it: ")
	want("the sender has it", receiver, "value", key, "n1", "live | same | n1")
	byPort := daemon.ExplainQuery{Keys: []string{fmt.Sprintf("{id=%d port=%s}", lostSession, uplink)}}
	want("the receiver cannot hold the key", sender, "key", byPort, "n2", "this node cannot hold it as n1 sends it: ")
	want("the sender has it", receiver, "key", byPort, "n1", "live | same | n1")
	receiver.addUplink()
	want("the receiver holds the value", sender, "value", key, "n2", "live | same | n1")
	want("the receiver holds the key", sender, "key", byPort, "n2", "live | same | n1")
	sender.removeUplink()
	sender.write(2)
	want("the sender cannot send the value", receiver, "value", key, "n1", "live | same | n1 | this node cannot send it: ")
}

// TestExplainAsksReadFrom: a node that may not read a map of another one does not get its entries by a question either.
func TestExplainAsksReadFrom(t *testing.T) {
	nodes, maps := secureNodes(t, 3)
	nodes[0].config.ReadFrom = []string{"ct=n3"}
	for _, n := range nodes {
		n.start()
	}
	poll.Eventually(t, "n1 is ready", func() bool { return nodes[0].status().Ready })
	nodes[0].write(maps[0], 5, 6, 7)
	key, _ := pair(5, 0)
	q := daemon.ExplainQuery{Keys: []string{fmt.Sprintf("%x", key)}}
	poll.Eventually(t, "n3 gets the entry of n1", func() bool { return nodes[2].explained("ct", q)["n1"] == "live | same | n1" })
	poll.Eventually(t, "n2 gets a reason", func() bool {
		return strings.Contains(nodes[1].explained("ct", q)["n1"], `not allowed: read-from of n1 does not have "n2"`)
	}, func() any { return nodes[1].explained("ct", q) })
}
