package daemon

import (
	"os"
	"testing"

	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

func TestConnectionsLeaveFilesForControl(t *testing.T) {
	t.Parallel()
	for _, files := range []uint64{1024, 4096, 65536, 1 << 62} {
		n := connectionsFor(files, 43)
		if n < 8 {
			t.Errorf("connections for %d files: got %d, want at least 8", files, n)
		}
		if used := uint64(n + grpcPending + httpPending + 43*filesPerMap); used+reservedFiles > files && n > 8 {
			t.Errorf("connections for %d files: got %d, want %d files left", files, n, reservedFiles)
		}
	}
}

// An open map uses at most filesPerMap descriptors while it is scanned and its watcher checks it.
func TestFilesPerMap(t *testing.T) {
	const watcher = 3
	raw, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ct", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if err := raw.Put(uint64(1), uint64(1)); err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	m, err := kmap.Open(raw, kmap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	used := 0
	err = m.Read(t.Context(), func() int64 { return 0 }, func(int64, []byte, []byte) error {
		used = openFiles(t) - before
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("descriptors of a map: %d", used)
	if used == 0 || used+watcher > filesPerMap {
		t.Errorf("descriptors of a map during a scan: got %d and %d for the watcher, want at most %d", used, watcher, filesPerMap)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
