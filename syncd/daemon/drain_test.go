package daemon_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

func TestDrainHandsOver(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 20_000)
	startPair(t, n1, n2)
	eventually(t, "healthy", n1.serving)
	n1.write(m1, 0, 10_000, 7)

	h, err := n1.client.Drain(t.Context())
	if err != nil || !h.Drained || h.Done {
		t.Fatalf("%+v %v", h, err)
	}
	if code, body := n1.readyz(); code != http.StatusServiceUnavailable || !strings.Contains(body, "drained") {
		t.Errorf("readyz of a drained node: %d %s", code, body)
	}
	if n1.serving() {
		t.Error("a drained node is healthy")
	}
	// Traffic ebbs away, and the peer, which gets it now, has traffic of its own without end.
	stop := busy(t, func(v uint64) {
		n2.write(m2, 15_000, 15_010, v)
		time.Sleep(20 * time.Millisecond)
	})
	last := time.Now()
	for i := range uint64(8) {
		n1.write(m1, 10_000+10*i, 10_010+10*i, 7)
		last = time.Now()
		time.Sleep(200 * time.Millisecond)
		if h, err = n1.client.Handover(t.Context()); err != nil || h.Done || !strings.Contains(strings.Join(h.Waiting, " "), "still change") {
			t.Fatalf("%+v %v", h, err)
		}
	}
	eventually(t, "handed over", func() bool { h, err = n1.client.Handover(t.Context()); return err == nil && h.Done })
	if missing := lacks(m2, 10_080, 7); missing > 0 {
		t.Errorf("handed over, and %d entries are missing", missing)
	}
	if quiet := time.Since(last); quiet < time.Second {
		t.Errorf("handed over %s after the last change", quiet)
	}
	stop()
	// It goes on replicating, both ways, and changes undo nothing but the proof. What changes
	// in place, where no hook sees it, is handed over too.
	n1.write(m1, 0, 100, 8)
	eventually(t, "not handed over", func() bool { h, _ = n1.client.Handover(t.Context()); return !h.Done })
	for i := range uint64(50) {
		key, value := pair(i+5000, 9)
		if err := m1.Update(key, value, ebpf.UpdateExist); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "it still replicates", func() bool { return lacks(m2, 100, 8) == 0 })
	eventually(t, "handed over again", func() bool { h, _ = n1.client.Handover(t.Context()); return h.Done })
	value := make([]byte, 8)
	for i := range uint64(50) {
		key, _ := pair(i+5000, 0)
		if err := m2.Lookup(key, value); err != nil || value[0] != 9 {
			t.Fatalf("entry %d was changed in place and not handed over: %v", i+5000, value)
		}
	}

	if h, err = n1.client.Undrain(t.Context()); err != nil || h.Drained || h.Done {
		t.Fatalf("%+v %v", h, err)
	}
	if code, _ := n1.readyz(); code != http.StatusOK || !n1.serving() {
		t.Error("not ready after the return")
	}
}

func TestDrainNeedsSomebodyToHandOverTo(t *testing.T) {
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1 := pinned(t, path1, 8, 8, 1000)
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	n1.start()
	eventually(t, "ready alone", func() bool { return n1.status().Ready })
	n1.write(m1, 0, 100, 7)
	if _, err := n1.client.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	waits := func(what string) func() bool {
		return func() bool {
			h, err := n1.client.Handover(t.Context())
			return err == nil && !h.Done && len(h.Waiting) == 1 && strings.Contains(h.Waiting[0], what)
		}
	}
	eventually(t, "nobody is there", waits("no live peer"))
	n2.start() // without a map: it cannot hold anything
	eventually(t, "the peer has no map", waits("n2 does not receive ct"))
	m2 := pinned(t, path2, 8, 8, 1000)
	eventually(t, "handed over", func() bool { h, err := n1.client.Handover(t.Context()); return err == nil && h.Done })
	if missing := lacks(m2, 100, 7); missing > 0 {
		t.Errorf("handed over, and %d entries are missing", missing)
	}
}
