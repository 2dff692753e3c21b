package capture

import (
	"testing"

	"github.com/cilium/ebpf"
)

func TestDetectsAllWrites(t *testing.T) {
	everywhere := AttachFexit.Detects(ebpf.Kprobe)
	for _, c := range []struct {
		attach  Attach
		missing []string
		want    bool
	}{
		{AttachFexit, nil, everywhere},
		{AttachFexit, []string{"htab_lru_map_delete_node"}, false},
		{AttachKprobe, nil, false},
		{AttachSyscall, nil, false},
		{AttachNone, nil, false},
	} {
		if got := detectsAllWrites(c.attach, c.missing); got != c.want {
			t.Errorf("%s without hooks on %v: got %t, want %t", c.attach, c.missing, got, c.want)
		}
	}
}
