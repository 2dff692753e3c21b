package capture_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// childEnv is the environment variable with the command of a child process of the tests.
const childEnv = "MAPSYNC_TEST_CHILD"

// control is a separate process that changes a map by bpf(2), like the control plane or the
// collector of a load balancer.
type control struct {
	cmd   *exec.Cmd
	in    *os.File
	out   *bufio.Reader
	inUse string
}

// startControl starts a process for the map m. The process ends with the test.
func startControl(t testing.TB, m *ebpf.Map) *control {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, toChild, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"=control")
	cmd.Stdin, cmd.Stderr = in, os.Stderr
	mapFile := os.NewFile(uintptr(dup(t, m.FD())), "map")
	defer mapFile.Close()
	cmd.ExtraFiles = []*os.File{mapFile}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		toChild.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("control process: %v", err)
		}
	})
	return &control{cmd: cmd, in: toChild, out: bufio.NewReader(out)}
}

// do makes the process run n operations of one kind, on the entries from first on, and waits for
// them.
func (c *control) do(t testing.TB, operation string, first, n, version int) {
	t.Helper()
	c.begin(t, operation, first, n, version, 1)
	c.end(t)
}

// begin makes the process run the operations loops times, and does not wait for them.
func (c *control) begin(t testing.TB, operation string, first, n, version, loops int) {
	t.Helper()
	c.inUse = operation
	if _, err := fmt.Fprintln(c.in, operation, first, n, version, loops); err != nil {
		t.Fatal(err)
	}
}

// end waits for the operations of begin.
func (c *control) end(t testing.TB) {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil || line != "done\n" {
		t.Fatalf("control process: %s: got %q, error %v, want done", c.inUse, line, err)
	}
}

// child is the main function of the child process. It runs the commands on its standard input.
func child() error {
	if words := strings.Fields(os.Getenv(childEnv)); words[0] == "limited" {
		return limited(words[1:])
	}
	m, err := ebpf.NewMapFromFD(3)
	if err != nil {
		return fmt.Errorf("take over map: %w", err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		var numbers [4]int
		for i := range numbers {
			if numbers[i], err = strconv.Atoi(words[i+1]); err != nil {
				return err
			}
		}
		for range numbers[3] {
			if err := operate(m, words[0], numbers[0], numbers[1], numbers[2]); err != nil {
				return fmt.Errorf("%s: %w", lines.Text(), err)
			}
		}
		fmt.Println("done")
	}
	return lines.Err()
}

// operate makes n bpf(2) operations on m, with the entries from first on.
func operate(m *ebpf.Map, operation string, first, n, version int) error {
	keySize, valueSize := int(m.KeySize()), int(m.ValueSize())
	switch operation {
	case "pin":
		_, err := dataplane.Pin(first)
		return err
	case "batch-update", "batch-delete", "batch-lookup-and-delete":
		return operateBatch(m, operation, first, n, version)
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
		case "update":
			err = putEntry(m, key, value)
		case "delete":
			err = m.Delete(key)
		case "system-call":
			unix.Getppid()
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

func isPerCPU(m *ebpf.Map) bool { return m.Type() == ebpf.PerCPUHash || m.Type() == ebpf.LRUCPUHash }

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
	key, value := taggedEntry(table.ContextSyscall, i)
	own := taggedKey(table.ContextSyscall, i)
	return errors.Join(m.Put(key, value), m.Put(own, value), m.Delete(own))
}

// operateBatch makes the operations in one call, on a map of 8 + 16 bytes.
func operateBatch(m *ebpf.Map, operation string, first, n, version int) error {
	keys, values := make([][8]byte, n), make([][16]byte, n)
	for i := range n {
		key, value := entry(8, 16, first+i, version+first+i)
		copy(keys[i][:], key)
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
		done, err = m.BatchLookupAndDelete(&cursor, make([][8]byte, 2*n), onEachCPU(m, make([][16]byte, 2*n)), nil)
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
