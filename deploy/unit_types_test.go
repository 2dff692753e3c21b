package deploy

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// typesProbe waits for the test at each step: before and after a restart of syncd.
const typesProbe = `step() {
	for i in $(seq 60); do
		/usr/local/bin/syncd status --json | grep -q '"state": "replicating"' && break
		sleep 1
	done
	touch /var/$1
	for i in $(seq 60); do
		[ -e /var/$1.done ] && break
		sleep 1
	done
}
step first
/usr/local/bin/syncd dump ct --json >/var/entries 2>&1
systemctl restart syncd
echo restarted $?
step second
echo active $(systemctl show -P ActiveState syncd)
journalctl -u syncd -o cat >/var/probe.log
`

// flowMap returns a pinned map with types: a key with a port in network byte order, and a value with two numbers.
func flowMap(t *testing.T, pin string) *ebpf.Map {
	t.Helper()
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	key := &btf.Struct{Name: "flow_key", Size: 8, Members: []btf.Member{{Name: "address", Type: u32}, {Name: "port", Type: u32, Offset: 32}}}
	value := &btf.Struct{Name: "flow", Size: 8, Members: []btf.Member{{Name: "backend", Type: u32}, {Name: "packets", Type: u32, Offset: 32}}}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 100, Key: key, Value: value})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	if err := m.Pin(pin); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestUnitReplicatesTypes: the installed unit reads the types of a map by their id, and replicates entries field by field to a
// node outside the container, also after a restart of syncd.
func TestUnitReplicatesTypes(t *testing.T) {
	needs(t, "systemd-nspawn")
	c := newContainer(t)
	inside, outside := flowMap(t, filepath.Join(c.bpffs, "ct")), flowMap(t, filepath.Join(c.bpffs, "ct2"))
	pid := os.Getpid()
	address := func(n int) string { return fmt.Sprintf("127.%d.%d.%d", 1+pid/250%250, pid%250, n) }
	settings := func(n int, pin string) string {
		return fmt.Sprintf("map: [ct=%s]\nattach: none\nscan-interval: 1s\nmax-scan-interval: 1s\nnode-name: n%d\ngossip-listen: %s:7946\ngrpc-listen: %s:7947\nmetrics-listen: \"\"\njoin: [%s:7946, %s:7946]\ninsecure: true\nfield: [\"ct:key.port=be\"]\n",
			pin, n, address(n), address(n), address(1), address(2))
	}
	c.file(t, c.root, "etc/mapsync/syncd.yaml", settings(1, "/run/bpf/ct"))
	c.file(t, c.root, "etc/systemd/system/probe.service", probe)
	c.file(t, c.root, "etc/probe.sh", typesProbe)
	unitIn(t, filepath.Join(c.root, "etc/systemd/system"), "-/sys/fs/bpf ", "-/sys/fs/bpf -/run/bpf ")
	for _, unit := range []string{"probe.service", "syncd.service"} {
		if err := os.Symlink("../"+unit, filepath.Join(c.root, "etc/systemd/system/multi-user.target.wants", unit)); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	c.file(t, dir, "syncd.yaml", settings(2, filepath.Join(c.bpffs, "ct2"))+"control-socket: "+dir+"/sock\nstate-dir: "+dir+"\npin-dir: \"\"\n")
	peer := exec.CommandContext(t.Context(), filepath.Join(c.extra, "local/bin/syncd"), "run", "--config", filepath.Join(dir, "syncd.yaml"))
	peer.Cancel = func() error { return peer.Process.Signal(syscall.SIGTERM) }
	var log strings.Builder
	peer.Stdout, peer.Stderr = &log, &log
	if err := peer.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = peer.Process.Signal(syscall.SIGTERM), peer.Wait() }()
	steps := make(chan error, 1)
	go func() {
		steps <- func() error {
			for i, step := range []string{"first", "second"} {
				if err := c.replicates(step, uint64(i+1), inside, outside); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	facts, text := c.boot(t)
	if err := <-steps; err != nil || facts["restarted"] != "0" || facts["active"] != "active" {
		t.Errorf("entries of the unit at the peer: got error %v and facts %v, want none, restarted 0 and active\n%s\npeer:\n%s", err, facts, text, log.String())
	}
	entries, err := os.ReadFile(filepath.Join(c.root, "var/entries"))
	for _, field := range []string{"address", "backend"} { // zeros are left out
		if err != nil || !strings.Contains(string(entries), field) {
			t.Errorf("entries: got %q and error %v, want the field %s", entries, err, field)
		}
	}
}

// replicates waits for a step of the container, writes an entry into its map, waits until the other map has it, and ends the step.
func (c *container) replicates(step string, n uint64, inside, outside *ebpf.Map) error {
	const limit = 90 * time.Second
	deadline := time.Now().Add(limit)
	wait := func(what string, done func() bool) error {
		for !done() {
			if time.Now().After(deadline) {
				return fmt.Errorf("%s: %s: not within %s", step, what, limit)
			}
			time.Sleep(100 * time.Millisecond) // between two checks
		}
		return nil
	}
	path := filepath.Join(c.root, "var", step)
	if err := wait("syncd replicates", func() bool { _, err := os.Stat(path); return err == nil }); err != nil {
		return err
	}
	key, value := binary.LittleEndian.AppendUint64(nil, n), binary.LittleEndian.AppendUint64(nil, 7*n)
	if err := inside.Put(key, value); err != nil {
		return err
	}
	got := make([]byte, 8)
	if err := wait("the peer has the entry", func() bool { return outside.Lookup(key, got) == nil && string(got) == string(value) }); err != nil {
		return err
	}
	return os.WriteFile(path+".done", nil, 0o600)
}
