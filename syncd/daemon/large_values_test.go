package daemon_test

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// TestLargeValuesReplicate: the events of values above capture.MaxValueSize carry the key only, and syncd rereads
// the entries. No scan helps.
func TestLargeValuesReplicate(t *testing.T) {
	const count, valueSize = 100, kmap.MaxValueSize
	dir := pinDir(t)
	var nodes [2]*node
	var maps [2]*ebpf.Map
	for i := range nodes {
		pin := filepath.Join(dir, string(rune('a'+i)))
		maps[i] = pinned(t, pin, kmap.MaxKeySize, valueSize, 2*count)
		n := newNode(t, i+1, "ct="+pin)
		n.config.ScanInterval, n.config.MaxScanInterval = time.Hour, time.Hour
		n.start()
		nodes[i] = n
	}
	poll.Eventually(t, "both nodes are ready", func() bool {
		for _, n := range nodes {
			if s := n.status(); !s.Ready || len(s.Peers) != 1 {
				return false
			}
		}
		return true
	})
	key := func(i int) []byte {
		return binary.LittleEndian.AppendUint64(make([]byte, kmap.MaxKeySize-8), uint64(i))
	}
	value := func(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 4)}, valueSize/2) }
	nodes[0].applyEntries(maps[0], count, func(i int) ([]byte, []byte) { return key(i), value(i) })
	missing := func(from int) (n int) {
		for i := from; i < count; i++ {
			if got, err := maps[1].LookupBytes(key(i)); err != nil || !bytes.Equal(got, value(i)) {
				n++
			}
		}
		return n
	}
	poll.Eventually(t, "the peer has all entries", func() bool { return missing(0) == 0 })
	nodes[0].applyEntries(maps[0], count/2, func(i int) ([]byte, []byte) { return key(i), nil })
	poll.Eventually(t, "the peer has half of the entries", func() bool { return missing(0) == count/2 && missing(count/2) == 0 })
}
