package daemon_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/problem"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// memoryCgroup is a cgroup that limits memory, of either version.
type memoryCgroup struct {
	t                   *testing.T
	path, limit, inUsed string
}

// newMemoryCgroup makes a cgroup. It skips the test if this host cannot limit memory.
func newMemoryCgroup(t *testing.T) *memoryCgroup {
	t.Helper()
	name := "mapsync-test-" + strconv.Itoa(os.Getpid())
	c := &memoryCgroup{t, filepath.Join("/sys/fs/cgroup/memory", name), "memory.limit_in_bytes", "memory.usage_in_bytes"}
	if os.Mkdir(c.path, 0o755) != nil {
		root := t.TempDir()
		if err := unix.Mount("cgroup", root, "cgroup2", 0, ""); err != nil {
			t.Skipf("no cgroup limits memory here: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
		if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			t.Skipf("no cgroup limits memory here: %v", err)
		}
		c = &memoryCgroup{t, filepath.Join(root, name), "memory.max", "memory.current"}
		if err := os.Mkdir(c.path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Remove(c.path) })
	return c
}

// limitTo sets the limit to what is in use and some bytes more.
func (c *memoryCgroup) limitTo(more int) {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.path, c.inUsed))
	if err != nil {
		c.t.Fatal(err)
	}
	used, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil {
		err = os.WriteFile(filepath.Join(c.path, c.limit), []byte(strconv.Itoa(used+more)), 0)
	}
	if err != nil {
		c.t.Fatalf("limit the memory of the cgroup: %v", err)
	}
}

// inCgroup is the path of a map that a process of TestCgroupWithoutMemoryIsAProblem creates.
const inCgroup = "SYNCD_TEST_MAP_IN_CGROUP"

// TestCgroupWithoutMemoryIsAProblem: the cgroup in which a load balancer has created its map has no memory for the entries of the
// peer. The remedy names the cgroup, and ends the problem.
func TestCgroupWithoutMemoryIsAProblem(t *testing.T) {
	const entries, size = 4000, 1024
	spec := ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: size, MaxEntries: 2 * entries, Flags: unix.BPF_F_NO_PREALLOC}
	if path := os.Getenv(inCgroup); path != "" {
		_, _ = os.Stdin.Read(make([]byte, 1)) // until this process is in the cgroup
		m, err := ebpf.NewMap(&spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Pin(path); err != nil {
			t.Fatal(err)
		}
		return
	}
	if kernelName() == "5.10" {
		t.Skip("before 5.11, the kernel charges maps to locked memory")
	}
	n1, n2, _, _ := twoNodes(t, 1)
	m1, cgroup := pinnedAs(t, n1.pin, &spec), newMemoryCgroup(t)
	cgroup.createMap(n2.pin)
	cgroup.limitTo(1 << 20)
	startPair(t, n1, n2)
	n1.applyEntries(m1, entries, func(i int) (key, value []byte) {
		key, _ = pair(uint64(i), 0)
		return key, make([]byte, size)
	})
	p := n2.shows("failed-writes", problem.Critical, "the kernel has no memory for them")
	if !strings.HasPrefix(p.Remedy, "raise the memory limit of the load balancer's cgroup") {
		t.Errorf("remedy: got %q, want the limit of the cgroup", p.Remedy)
	}
	n1.shows("redundancy", problem.Critical, "n2", "ct")
	cgroup.limitTo(64 << 20)
	n2.ends("failed-writes")
	n1.ends("redundancy")
}

// createMap lets a process of the cgroup create the map of the test at a path.
func (c *memoryCgroup) createMap(path string) {
	c.t.Helper()
	if err := os.Remove(path); err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+c.t.Name()+"$")
	cmd.Env = append(os.Environ(), inCgroup+"="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	err = os.WriteFile(filepath.Join(c.path, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0)
	_ = in.Close()
	if waited := cmd.Wait(); err != nil || waited != nil {
		c.t.Fatalf("create a map in the cgroup: %v, %v", err, waited)
	}
	poll.Eventually(c.t, "the cgroup has no process", func() bool {
		list, err := os.ReadFile(filepath.Join(c.path, "cgroup.procs"))
		return err == nil && len(list) == 0
	})
}
