package daemon_test

import (
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
)

// A new release of the load balancer tags a field as volatile, and changes nothing else. From then
// on, syncd does not send an entry at once if only this field has changed.
func TestVolatileFieldOfReplacedMap(t *testing.T) {
	path := filepath.Join(pinDir(t), "ct")
	typed(t, path, keyV1, valueV1, 1000)
	n := newNode(t, 1, "ct="+path)
	n.config.Join, n.config.RefreshInterval = nil, time.Hour
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	first := n.status().Maps[0].ID

	k, v := keyV1.build("ct_key"), valueV1.build("ct_value")
	v.Members[0].Tags = []string{"mapsync:volatile"}
	m := pinnedAs(t, path, &ebpf.MapSpec{
		Name: "ct", Type: ebpf.Hash, KeySize: k.Size, ValueSize: v.Size, MaxEntries: 1000, Key: k, Value: v,
	})
	poll.Eventually(t, "the new map is ready", func() bool { s := n.status(); return s.Ready && s.Maps[0].ID != first })
	write := func(bytes uint64) {
		n.applyEntries(m, 100, func(i int) (k, v []byte) {
			k, _ = session(keyV1, valueV1, uint64(i), 3)
			return k, valueV1.bytes(map[string]uint64{"bytes": bytes, "state": 3})
		})
	}
	write(1)
	poll.Eventually(t, "the table has the records", func() bool { return n.status().Maps[0].Live == 100 })
	before := n.status().Maps[0].Position
	write(2)
	poll.Stays(t, 500*time.Millisecond, "the changes of the volatile field are not sent", func() bool {
		return n.status().Maps[0].Position == before
	})
}
