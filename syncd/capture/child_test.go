package capture_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"mapsync/internal/child"
	"mapsync/internal/dataplane"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// childEnv is the environment variable with the command of a child process of the tests.
const childEnv = "MAPSYNC_TEST_CHILD"

// control is a separate process that changes a map by bpf(2), like the control plane or the
// collector of a load balancer.
type control struct{ *child.Process }

// startControl starts a process for the map m. The process ends with the test.
func startControl(t testing.TB, m *ebpf.Map) control {
	t.Helper()
	mapFile := os.NewFile(uintptr(dup(t, m.FD())), "map")
	defer mapFile.Close()
	return control{child.Start(t, childEnv+"=control", mapFile)}
}

// do makes the process run n operations of one kind, on the entries from first on, and waits for
// them.
func (c control) do(t testing.TB, operation string, first, n, version int) {
	t.Helper()
	c.begin(t, operation, first, n, version, 1)
	c.End(t)
}

// begin makes the process run the operations loops times. End waits for them.
func (c control) begin(t testing.TB, operation string, first, n, version, loops int) {
	t.Helper()
	c.Begin(t, fmt.Sprintf("%s %d %d %d %d", operation, first, n, version, loops))
}

// runChild is the main function of the child process.
func runChild() error {
	if words := strings.Fields(os.Getenv(childEnv)); words[0] == "limited" {
		return limited(words[1:])
	}
	m, err := ebpf.NewMapFromFD(3)
	if err != nil {
		return fmt.Errorf("take over map: %w", err)
	}
	return child.Serve(func(line string) error {
		var operation string
		var first, n, version, loops int
		if _, err := fmt.Sscan(line, &operation, &first, &n, &version, &loops); err != nil {
			return err
		}
		for range loops {
			if err := operate(m, operation, first, n, version); err != nil {
				return err
			}
		}
		return nil
	})
}

// operate makes n bpf(2) operations on m, with the entries from first on.
func operate(m *ebpf.Map, operation string, first, n, version int) error {
	keySize, valueSize := int(m.KeySize()), int(m.ValueSize())
	switch operation {
	case "pin":
		_, err := dataplane.Pin(first)
		return err
	case "batch-update", "batch-delete", "batch-lookup-and-delete":
		if keySize == 4 {
			return operateBatch[[4]byte](m, operation, first, n, version)
		}
		return operateBatch[[8]byte](m, operation, first, n, version)
	case "sys-bpf":
		return operateSysBPF(m, n)
	}
	if _, ok := failingCalls[operation]; ok {
		return operateFailing(m, operation, first)
	}
	for i := first; i < first+n; i++ {
		key, value := entry(keySize, valueSize, i, version+i)
		var err error
		switch operation {
		case "tagged":
			err = operateTagged(m, i)
		case "tagged-batch":
			err = operateTaggedBatch(m)
		case "update":
			err = putEntry(m, key, value)
		case "delete":
			err = m.Delete(key)
		case "lookup":
			_, err = m.LookupBytes(key)
		case "system-call":
			unix.Getppid()
		case "process":
			_ = exec.Command("/nonexistent").Run() // the process is created, and cannot execute
		case "lookup-and-delete":
			err = lookupAndDelete(m, key, &value)
		default:
			err = fmt.Errorf("unknown operation")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// putEntry updates an entry by bpf(2). In a per-CPU map it sets the values of all CPUs.
func putEntry(m *ebpf.Map, key, value []byte) error {
	if !isPerCPU(m) {
		return m.Put(key, value)
	}
	return m.Put(key, onEachCPU(m, [][]byte{value}))
}

func lookupAndDelete(m *ebpf.Map, key []byte, value *[]byte) error {
	if !isPerCPU(m) {
		return m.LookupAndDelete(key, value)
	}
	return m.LookupAndDelete(key, new([][]byte))
}

func isPerCPU(m *ebpf.Map) bool {
	return m.Type() == ebpf.PerCPUHash || m.Type() == ebpf.LRUCPUHash || m.Type() == ebpf.PerCPUArray
}

// onEachCPU returns values, or, for a per-CPU map, each value repeated for every CPU.
func onEachCPU[V any](m *ebpf.Map, values []V) []V {
	if !isPerCPU(m) {
		return values
	}
	var all []V
	for _, v := range values {
		for range ebpf.MustPossibleCPU() {
			all = append(all, v)
		}
	}
	return all
}

// operateTagged makes the bpf(2) writes of TestWriteContextUnderLoad.
func operateTagged(m *ebpf.Map, i int) error {
	key, value := taggedEntry(singleWriter, i)
	own := taggedKey(singleWriter, i)
	err := m.Delete(own)
	if errors.Is(err, ebpf.ErrKeyNotExist) { // drained
		err = nil
	}
	return errors.Join(m.Put(key, value), m.Put(own, value), err)
}

// operateTaggedBatch makes those with many entries per call. It drains one bucket of the map.
func operateTaggedBatch(m *ebpf.Map) error {
	const n = 16
	keys, values := make([][8]byte, n), make([][16]byte, n)
	for i := range n {
		_, value := taggedEntry(batchWriter, i)
		keys[i], values[i] = [8]byte(taggedKey(batchWriter, i)), [16]byte(value)
	}
	_, err := m.BatchUpdate(keys, values, nil)
	if err != nil {
		return err
	}
	// Another drain has removed some of the keys, at which the kernel stops.
	if _, err = m.BatchDelete(keys[:n/2], nil); errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	var cursor ebpf.MapBatchCursor
	_, err = m.BatchLookupAndDelete(&cursor, make([][8]byte, 8), make([][16]byte, 8), nil)
	if errors.Is(err, ebpf.ErrKeyNotExist) || errors.Is(err, unix.ENOSPC) { // the end of the map, or a large bucket
		err = nil
	}
	return err
}

// operateBatch makes the operations in one call, on a map with values of 16 bytes.
func operateBatch[K [4]byte | [8]byte](m *ebpf.Map, operation string, first, n, version int) error {
	keys, values := make([]K, n), make([][16]byte, n)
	for i := range n {
		key, value := entry(len(keys[i]), 16, first+i, version+first+i)
		keys[i] = K(key)
		copy(values[i][:], value)
	}
	var err error
	done := n
	switch operation {
	case "batch-update":
		done, err = m.BatchUpdate(keys, onEachCPU(m, values), nil)
	case "batch-delete":
		done, err = m.BatchDelete(keys, nil)
	case "batch-lookup-and-delete":
		var cursor ebpf.MapBatchCursor
		done, err = m.BatchLookupAndDelete(&cursor, make([]K, 2*n), onEachCPU(m, make([][16]byte, 2*n)), nil)
		if errors.Is(err, ebpf.ErrKeyNotExist) { // end of the map
			err = nil
		}
	}
	if err == nil && done != n {
		err = fmt.Errorf("%d of %d entries", done, n)
	}
	return err
}

func dup(t testing.TB, fd int) int {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
