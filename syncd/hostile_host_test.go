package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/internal/netns"
	"mapsync/internal/testcert"
	"mapsync/syncd/schema"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// forged is the beginning of a line that a hostile text tries to add to an output.
const forged = "FORGED"

// hostile returns a text that sets the title and the colour of a terminal, reverses the direction, and begins a line. It
// also has a letter and a tag, which must be printed.
func hostile(tag string) string {
	return "é" + tag + "\x1b]0;title\a\u009b31m\u202e\u200b\n\t" + forged
}

// hostileName is hostile with at most 15 bytes, for names of interfaces and processes.
func hostileName(tag string) string { return "é" + tag + "\x1b]0;\u202e" }

// hostileHost has maps, pins, interfaces, processes and files with hostile names.
type hostileHost struct {
	*testing.T
	dir, bpffs string
	ca         *testcert.CA
	ct, former *ebpf.Map
}

// The names of the maps of a hostileHost. The daemon replicates the first three. opaqueMap is in the object file.
const (
	ctMap     = "ct"
	formerMap = "former"
	otherMap  = "other"
	opaqueMap = "opaque"
)

// fieldSettings are the roles of the fields of ctMap.
var fieldSettings = []string{ctMap + ":key.dev=ifindex"}

// ctTypes returns the types of ctMap: an interface and a text, and a counter.
func ctTypes() (key, value *btf.Struct) {
	number := func(name string, size uint32) *btf.Int {
		return &btf.Int{Name: name, Size: size, Encoding: btf.Unsigned}
	}
	text := &btf.Array{Index: number("unsigned int", 4), Type: &btf.Int{Name: "char", Size: 1, Encoding: btf.Signed}, Nelems: 12}
	key = &btf.Struct{Name: "ct_key", Size: 16, Members: []btf.Member{
		{Name: "dev", Type: number("unsigned int", 4)},
		{Name: "user", Type: text, Offset: 32},
	}}
	value = &btf.Struct{Name: "ct_value", Size: 8, Members: []btf.Member{{Name: "n", Type: number("unsigned long long", 8)}}}
	return key, value
}

// ctSchema returns the schema of ctMap.
func (h *hostileHost) ctSchema() *schema.Schema {
	h.Helper()
	key, value := ctTypes()
	s, err := schema.FromTypes(ctMap, key, value)
	for _, text := range fieldSettings {
		setting, parseErr := schema.ParseSetting(text)
		err = errors.Join(err, parseErr, s.Apply([]schema.Setting{setting}))
	}
	if err != nil {
		h.Fatal(err)
	}
	return s
}

// newHostileHost creates the maps, pins and files. The interface of its network namespace exists.
func newHostileHost(t *testing.T) *hostileHost {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	h := &hostileHost{T: t, dir: t.TempDir()}
	h.bpffs = filepath.Join(h.dir, "bpf")
	if err := errors.Join(os.Mkdir(h.bpffs, 0o700), unix.Mount("bpf", h.bpffs, "bpf", 0, "")); err != nil {
		t.Fatalf("mount a BPF file system (needs root): %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(h.bpffs, unix.MNT_DETACH) })
	var err error
	if h.ca, err = testcert.NewCA(h.dir, "ca"); err != nil {
		t.Fatal(err)
	}
	key, value := ctTypes()
	h.ct = h.newMap(ctMap, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 16, ValueSize: 8, MaxEntries: 10, Key: key, Value: value})
	h.former = h.newMap(formerMap, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
	h.newMap(otherMap, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
	h.newMap(hostile("pin"), &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
	h.writeEntries()
	h.writeObject()
	return h
}

// newMap creates a map that is pinned by a name.
func (h *hostileHost) newMap(pin string, spec *ebpf.MapSpec) *ebpf.Map {
	h.Helper()
	m, err := ebpf.NewMap(spec)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { m.Close() })
	_ = os.Remove(filepath.Join(h.bpffs, pin)) // of a former map
	if err := m.Pin(filepath.Join(h.bpffs, pin)); err != nil {
		h.Fatal(err)
	}
	return m
}

// writeEntries writes an entry with the interface of this network namespace, which cannot be sent, and one with a hostile text.
func (h *hostileHost) writeEntries() {
	h.Helper()
	link, err := netlink.LinkByName(hostileName("dev"))
	if err != nil {
		h.Fatal(err)
	}
	for user, dev := range map[string]int{"interface": link.Attrs().Index, "\x1b]0;\u202e": 0} {
		key := make([]byte, 16)
		key[0] = byte(dev)
		copy(key[4:], user)
		if err := h.ct.Put(key, uint64(1)); err != nil {
			h.Fatal(err)
		}
	}
}

// objectFile is the name of a BPF object file in which opaqueMap has a hostile name.
const objectFile = "hostile.o"

// writeObject writes objectFile.
func (h *hostileHost) writeObject() {
	h.Helper()
	object, err := os.ReadFile("schema/testdata/layouts.o")
	if err != nil {
		h.Fatal(err)
	}
	name := "\x1b]0;o\n"
	changed := bytes.ReplaceAll(object, []byte("\x00"+opaqueMap+"\x00"), []byte("\x00"+name+"\x00"))
	if len(name) != len(opaqueMap) || bytes.Equal(changed, object) {
		h.Fatalf("object file: got no map %s, want one to rename", opaqueMap)
	}
	if err := os.WriteFile(filepath.Join(h.dir, objectFile), changed, 0o600); err != nil {
		h.Fatal(err)
	}
}

// replaceFormer replaces the map formerMap. A process with a hostile name still uses the former one.
func (h *hostileHost) replaceFormer() {
	h.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		h.Fatal(err)
	}
	program := filepath.Join(h.dir, hostileName("comm"))
	if err := os.Symlink(sleep, program); err != nil {
		h.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(h.former.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		h.Fatal(err)
	}
	held := os.NewFile(uintptr(fd), "map")
	defer held.Close()
	cmd := exec.Command(program, "inf")
	cmd.Args[0] = "sleep" // by which a program of several commands chooses its own
	cmd.ExtraFiles = []*os.File{held}
	if err := cmd.Start(); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	h.newMap(formerMap, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
}

// insideNamespace is set in the process that runs a test in its own network namespace.
const insideNamespace = "SYNCD_TEST_NAMESPACE"

// inNamespace runs the current test in a process of its own, in a network namespace with a hostile interface. It returns
// true in that process.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideNamespace) != "" {
		return true
	}
	ns, err := netns.New("hostile")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: hostileName("dev")}, PeerName: "other"}
	if err := ns.Handle().LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run", fmt.Sprintf("^%s$", t.Name()), "-test.v", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), insideNamespace+"=1")
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := errors.Join(ns.Start(cmd), cmd.Wait()); err != nil || !strings.Contains(out.String(), "--- PASS: "+t.Name()) {
		t.Errorf("test in its own network namespace: got error %v, want it to pass\n%s", err, out)
	}
	return false
}
