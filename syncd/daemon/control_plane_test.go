package daemon_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"mapsync/internal/child"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
)

// controlVariable makes this test binary run as a control plane. Its value is the path of a pinned map.
const controlVariable = "MAPSYNC_TEST_CONTROL_PLANE"

// controlPlane is another process that changes a map by bpf(2), like the control plane or the collector
// of a load balancer.
type controlPlane struct {
	t *testing.T
	*child.Process
}

func startControlPlane(t *testing.T, pin string) controlPlane {
	t.Helper()
	return controlPlane{t, child.Start(t, controlVariable+"="+pin)}
}

// is reports whether an ID in the initial PID namespace is that of the control plane. In another namespace, any ID may be.
func (c controlPlane) is(id uint32) bool {
	link, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		c.t.Fatal(err)
	}
	return id == uint32(c.ID) || id != 0 && link != "pid:[4026531836]"
}

// do makes the control plane run an operation on n entries from first on, and waits for the end.
func (c controlPlane) do(operation string, first, n, version uint64) {
	c.t.Helper()
	c.Begin(c.t, fmt.Sprintf("%s %d %d %d", operation, first, n, version))
	c.End(c.t)
}

// runControlPlane is the main function of the control plane.
func runControlPlane(pin string) error {
	m, err := ebpf.LoadPinnedMap(pin, nil)
	if err != nil {
		return err
	}
	return child.Serve(func(line string) error {
		var operation string
		var first, n, version uint64
		if _, err := fmt.Sscan(line, &operation, &first, &n, &version); err != nil {
			return err
		}
		return operate(m, operation, first, n, version)
	})
}

// anyEntry returns an entry of a map of any sizes. In an array, n is its index.
func anyEntry(m *ebpf.Map, n, version uint64) (key, value []byte) {
	key, value = make([]byte, max(m.KeySize(), 8)), make([]byte, m.ValueSize())
	binary.NativeEndian.PutUint64(key, n)
	binary.NativeEndian.PutUint64(value, version)
	return key[:m.KeySize()], value
}

// putAny updates an entry, in a per-CPU map the values of all CPUs.
func putAny(m *ebpf.Map, n, version uint64) error {
	key, value := anyEntry(m, n, version)
	if t := m.Type(); t != ebpf.PerCPUHash && t != ebpf.LRUCPUHash && t != ebpf.PerCPUArray {
		return m.Put(key, value)
	}
	values := make([][]byte, ebpf.MustPossibleCPU())
	for i := range values {
		values[i] = value
	}
	return m.Put(key, values)
}

// batchOf returns the entries [first, first+n) for a call with many entries, as slices of arrays. In a per-CPU map, values
// has the value of each entry once for each CPU.
func batchOf(m *ebpf.Map, first, n, version uint64) (keys, values any) {
	cpus := 1
	if t := m.Type(); t == ebpf.PerCPUHash || t == ebpf.LRUCPUHash || t == ebpf.PerCPUArray {
		cpus = ebpf.MustPossibleCPU()
	}
	slice := func(size uint32, n int) reflect.Value {
		return reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(size), reflect.TypeFor[byte]())), n, n)
	}
	k, v := slice(m.KeySize(), int(n)), slice(m.ValueSize(), int(n)*cpus)
	for i := range int(n) {
		key, value := anyEntry(m, first+uint64(i), version)
		reflect.Copy(k.Index(i), reflect.ValueOf(key))
		for cpu := range cpus {
			reflect.Copy(v.Index(i*cpus+cpu), reflect.ValueOf(value))
		}
	}
	return k.Interface(), v.Interface()
}

// operate runs an operation on entries of any sizes. The names of those with many entries in a call begin with "batch".
func operate(m *ebpf.Map, operation string, first, n, version uint64) (err error) {
	switch operation {
	case "batch-update":
		keys, values := batchOf(m, first, n, version)
		_, err = m.BatchUpdate(keys, values, nil)
		return err
	case "batch-delete":
		keys, _ := batchOf(m, first, n, version)
		_, err = m.BatchDelete(keys, nil)
		return err
	case "batch-drain":
		keys, values := batchOf(m, first, n, version)
		var cursor ebpf.MapBatchCursor
		for err == nil {
			_, err = m.BatchLookupAndDelete(&cursor, keys, values, nil)
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil // the map is empty
		}
		return err
	}
	for i := range n {
		switch operation {
		case "update":
			err = errors.Join(err, putAny(m, first+i, version))
		case "use": // of an entry whose first 8 bytes are 1: changes the last 8 bytes
			key, value := anyEntry(m, first+i, 1)
			binary.NativeEndian.PutUint64(value[len(value)-8:], version)
			err = errors.Join(err, m.Put(key, value))
		default:
			key, _ := anyEntry(m, first+i, version)
			err = errors.Join(err, m.Delete(key))
		}
	}
	return err
}

// controlMethods returns the attach methods that detect writes by bpf(2).
func controlMethods() []capture.Attach {
	methods := []capture.Attach{capture.AttachFexit, capture.AttachKprobe}
	// The emulator often fails while the kernel patches the entry of all system calls.
	if kernelName() == "" {
		methods = append(methods, capture.AttachSyscall)
	}
	return methods
}

// Another process writes by bpf(2), singly and in batches. The peer's map follows at once: the next scan
// is an hour away.
func TestControlPlaneWrites(t *testing.T) {
	for _, offer := range probeOnce(controlMethods()...) {
		for _, typ := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash} {
			t.Run(fmt.Sprintf("%s/%s", offer.Attach, typ), func(t *testing.T) {
				if offer.Err != nil {
					refused(t, &offer)
				}
				testControlPlaneWrites(t, offer.Attach, typ)
			})
		}
	}
}

func testControlPlaneWrites(t *testing.T, attach capture.Attach, typ ebpf.MapType) {
	dir := pinDir(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	spec := &ebpf.MapSpec{Name: "ct", Type: typ, KeySize: 8, ValueSize: 16, MaxEntries: 100_000}
	m2 := pinnedAs(t, two, spec)
	pinnedAs(t, one, spec)
	n1, n2 := newNode(t, 1, "ct="+one), newNode(t, 2, "ct="+two)
	n1.attach = attach
	n1.config.ScanInterval, n2.config.ScanInterval = time.Hour, time.Hour
	n1.config.Clears = []string{"ct=replicate"} // the drain takes all entries
	startPair(t, n1, n2)
	c := startControlPlane(t, one)
	for _, step := range []struct {
		operation         string
		first, n, version uint64
		want              map[uint64]uint64 // number of entries by value
	}{
		{"update", 0, 1000, 1, map[uint64]uint64{1: 1000}},
		{"update", 500, 100, 2, map[uint64]uint64{1: 900, 2: 100}},
		{"batch-update", 900, 6000, 3, map[uint64]uint64{1: 800, 2: 100, 3: 6000}},
		{"delete", 0, 500, 0, map[uint64]uint64{1: 300, 2: 100, 3: 6000}},
		{"batch-delete", 1000, 5000, 0, map[uint64]uint64{1: 300, 2: 100, 3: 1000}},
		{"batch-drain", 0, 64, 0, map[uint64]uint64{}},
		// More keys than can wait for a reread: a scan of the map follows.
		{"batch-update", 0, 60_000, 4, map[uint64]uint64{4: 60_000}},
	} {
		c.do(step.operation, step.first, step.n, step.version)
		poll.Within(t, 2*time.Minute, "the peer's map follows "+step.operation, func() bool {
			got := make(map[uint64]uint64)
			for _, value := range entriesOf(t, m2) {
				got[binary.NativeEndian.Uint64(value[:])]++
			}
			return fmt.Sprint(got) == fmt.Sprint(step.want)
		})
	}
	// A preemptible kernel skips hooks that preempt one another. A scan follows.
	preemptible := kernelName() == "6.1/preempt=full" || kernelName() == "testing"
	if s := n1.status().Capture; (s.Losses.Repaired != 0 || s.Losses.Open) && (!preemptible || s.Skipped == 0) {
		t.Errorf("losses: got %+v, want none, so that no scan has found the changes", s)
	}
}

// TestEvictionsByControlPlaneAreNoDeletes: writes by bpf(2) evict the entries of an LRU map, whose owner may still use them. Scans
// find them gone, and the peer keeps them.
func TestEvictionsByControlPlaneAreNoDeletes(t *testing.T) {
	const entries, chunk, most = 200, 50, 40_000
	for _, offer := range probeOnce(controlMethods()...) {
		for _, typ := range []ebpf.MapType{ebpf.LRUHash, ebpf.LRUCPUHash} {
			t.Run(fmt.Sprintf("%s/%s", offer.Attach, typ), func(t *testing.T) {
				if offer.Err != nil {
					refused(t, &offer)
				}
				dir := pinDir(t)
				one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
				spec := ebpf.MapSpec{Name: "ct", Type: typ, KeySize: 8, ValueSize: 16, MaxEntries: 2 * entries}
				m1 := pinnedAs(t, one, &spec)
				spec.MaxEntries = 2 * most
				m2 := pinnedAs(t, two, &spec)
				n1, n2 := newNode(t, 1, "ct="+one), newNode(t, 2, "ct="+two)
				n1.attach = offer.Attach
				n1.config.ScanInterval = 50 * time.Millisecond
				startPair(t, n1, n2)
				c := startControlPlane(t, one)
				held := func(m *ebpf.Map) (n int) {
					for i := range uint64(entries) {
						key, _ := anyEntry(m, i, 0)
						if value, err := m.LookupBytes(key); err == nil && value != nil {
							n++
						}
					}
					return n
				}
				c.do("update", 0, entries, 1)
				poll.Eventually(t, "the peer has the entries", func() bool { return held(m2) == entries })
				// The kernel keeps entries in use, which those are that syncd has reread. The new entries are in use, too: the
				// second write of an entry is a use. How many writes evict the entries depends on the CPUs that make them.
				for first := uint64(entries); held(m1) > entries/2; first += chunk {
					if first > most {
						t.Fatalf("entries that stay in the full map after %d writes: got %d, want at most %d", first, held(m1), entries/2)
					}
					c.do("update", first, chunk, 1)
					c.do("update", first, chunk, 2)
				}
				scans := func() uint64 { return n1.status().Maps[0].Scan.Scans }
				last := scans()
				poll.Eventually(t, "three more scans", func() bool { return scans() > last+3 })
				poll.Stays(t, time.Second, "the peer keeps the entries", func() bool { return held(m2) == entries })
			})
		}
	}
}
