package kmap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"mapsync/internal/poll"
)

func TestParseRef(t *testing.T) {
	for in, want := range map[string]Ref{
		"ct_map":                  {Name: "ct_map"},
		"name:ct_map":             {Name: "ct_map"},
		"/sys/fs/bpf/tc/ct_map":   {PinPath: "/sys/fs/bpf/tc/ct_map"},
		"pin:/sys/fs/bpf//x":      {PinPath: "/sys/fs/bpf/x"},
		"id:12":                   {ID: 12},
		"lru[0]":                  {Name: "lru", InnerKey: "0"},
		"pin:/sys/fs/bpf/x[0xff]": {PinPath: "/sys/fs/bpf/x", InnerKey: "0xff"},
		"id:12[3]":                {ID: 12, InnerKey: "3"},
	} {
		got, err := ParseRef(in)
		if err != nil || got != want {
			t.Errorf("parse %q: got %+v, error %v, want %+v and nil", in, got, err, want)
		}
		if again, err := ParseRef(got.String()); err != nil || again != got {
			t.Errorf("parse %q: its string %q: got %+v, error %v, want %+v and nil", in, got.String(), again, err, got)
		}
	}
	for _, in := range []string{"", "name:", "id:", "id:0", "id:-1", "id:x", "id:4294967296", "pin:x", "pin:", "what:x", "lru[]", "[0]", "id:0[1]", "lru[x]", "lru[-1]", "lru[0x0]", "lru[1][2]", "lru[*]", "/sys/fs/bpf/x[0]/", "a\nb", "a b", "a\u202e"} {
		if got, err := ParseRef(in); err == nil {
			t.Errorf("parse %q: got %+v, want an error", in, got)
		}
	}
}

// uniqueName returns a map name of one test, because the maps of other tests are on the same host.
func uniqueName(base string) string {
	return fmt.Sprintf("%s_%x", base, time.Now().UnixNano()&0xffffff)
}

func idOf(t *testing.T, m *ebpf.Map) uint32 {
	t.Helper()
	i, err := infoOf(m.FD())
	if err != nil {
		t.Fatal(err)
	}
	return i.id
}

func resolvedID(t *testing.T, ref Ref) (uint32, error) {
	t.Helper()
	m, err := Resolve(ref)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	return idOf(t, m), nil
}

func namedSpec(name string) *ebpf.MapSpec {
	s := hashSpec(8, 8, 100)
	s.Name = name
	return s
}

func TestResolve(t *testing.T) {
	name := uniqueName("resolve")
	for _, ref := range []Ref{{Name: name}, {ID: 0xfffffff0}, {PinPath: "/sys/fs/bpf/" + name}} {
		if _, err := resolvedID(t, ref); !errors.Is(err, ErrNotFound) {
			t.Errorf("resolve %s: got %v, want ErrNotFound", ref, err)
		}
	}
	if _, err := Resolve(Ref{}); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("resolve empty reference: got %v, want an error other than ErrNotFound", err)
	}
	m := newKernelMap(t, namedSpec(name))
	for _, ref := range []Ref{{Name: name}, {Name: name + "_longer_than_the_kernel_keeps"}, {ID: idOf(t, m)}} {
		if len(ref.Name) > maxName {
			ref.Name = ref.Name[:0] + name + strings.Repeat("x", maxName-len(name)) + "yz"
			newKernelMap(t, namedSpec(ref.Name[:maxName]))
			if _, err := resolvedID(t, ref); err != nil {
				t.Errorf("resolve %s: %v", ref, err)
			}
			continue
		}
		if id, err := resolvedID(t, ref); err != nil || id != idOf(t, m) {
			t.Errorf("resolve %s: got ID %d, error %v, want %d and nil", ref, id, err, idOf(t, m))
		}
	}
	// A map of another type with the same name is ignored.
	newKernelMap(t, &ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if id, err := resolvedID(t, Ref{Name: name}); err != nil || id != idOf(t, m) {
		t.Errorf("resolve beside an array: got ID %d, error %v, want %d and nil", id, err, idOf(t, m))
	}
	second := newKernelMap(t, namedSpec(name))
	_, err := resolvedID(t, Ref{Name: name})
	if !errors.Is(err, ErrAmbiguous) || !strings.Contains(err.Error(), fmt.Sprint(idOf(t, m))) {
		t.Errorf("resolve with two maps: got %v, want ErrAmbiguous with their IDs", err)
	}
	useByProgram(t, second)
	if id, err := resolvedID(t, Ref{Name: name}); err != nil || id != idOf(t, second) {
		t.Errorf("resolve with one of two maps in use: got ID %d, error %v, want %d and nil", id, err, idOf(t, second))
	}
}

// useByProgram loads a program of another process that uses m, until the test ends or the program
// is closed.
func useByProgram(t *testing.T, m *ebpf.Map) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "lb", Type: ebpf.SocketFilter, License: "MIT",
		Instructions: asm.Instructions{asm.LoadMapPtr(asm.R1, m.FD()), asm.LoadImm(asm.R0, 0, asm.DWord), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// bpffs returns a directory in a bpf file system for this test.
func bpffs(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "b p f")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpffs", dir, "bpf", 0, ""); err != nil {
		t.Fatalf("mount bpffs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestBPFMounts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mountinfo")
	text := `22 1 0:20 / /sys/fs/bpf rw,nosuid shared:9 - bpf bpf rw,mode=700
23 1 0:21 / /tmp/b\040p\134f rw - bpf none rw
24 1 0:22 / /bpf rw - tmpfs bpf rw
garbage
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := bpfMounts(file)
	if err != nil || !slices.Equal(got, []string{"/sys/fs/bpf", `/tmp/b p\f`}) {
		t.Errorf("bpf mounts: got %q, error %v, want \"/sys/fs/bpf\", `/tmp/b p\\f` and nil", got, err)
	}
}

// expectEvent waits for an event and returns its map, which is closed at the end of the test.
func expectEvent(t *testing.T, w *Watcher, kind EventKind, id uint32) *ebpf.Map {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*poll.Limit) // the test, not the machine, decides
	defer cancel()
	e, err := w.Next(ctx)
	if err != nil || e.Kind != kind || e.ID != id {
		t.Fatalf("event: got %s %d, error %v, want %s %d", e.Kind, e.ID, err, kind, id)
	}
	if e.Map != nil {
		t.Cleanup(func() { e.Map.Close() })
	}
	return e.Map
}

func expectNoEvent(t *testing.T, w *Watcher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	if e, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("event: got %s %d, error %v, want none", e.Kind, e.ID, err)
	}
}

func TestWatchPin(t *testing.T) {
	path := filepath.Join(bpffs(t), "map")
	w := NewWatcher(Ref{PinPath: path}, 10*time.Millisecond)
	expectEvent(t, w, Gone, 0)
	expectNoEvent(t, w)
	for _, kind := range []EventKind{Appeared, Replaced} {
		m := newKernelMap(t, namedSpec("pinned"))
		if kind == Replaced {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Pin(path); err != nil {
			t.Fatal(err)
		}
		expectEvent(t, w, kind, idOf(t, m))
		expectNoEvent(t, w)
		if kind == Replaced {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			expectEvent(t, w, Gone, idOf(t, m))
			expectNoEvent(t, w)
		}
	}
	// A map that the caller could not open, and that disappears before the caller retries.
	m := newKernelMap(t, namedSpec("pinned"))
	if err := m.Pin(path); err != nil {
		t.Fatal(err)
	}
	expectEvent(t, w, Appeared, idOf(t, m))
	w.Forget()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expectEvent(t, w, Gone, 0)
	expectNoEvent(t, w)
}

// TestWatchName restarts a load balancer: it creates a new map with the same name, while the old
// map still exists because this process holds it.
func TestWatchName(t *testing.T) {
	name := uniqueName("watch")
	w := NewWatcher(Ref{Name: name}, 10*time.Millisecond)
	expectEvent(t, w, Gone, 0)
	old := newKernelMap(t, namedSpec(name))
	user := useByProgram(t, old)
	expectEvent(t, w, Appeared, idOf(t, old))
	openMap(t, old, Options{})
	expectNoEvent(t, w)

	renewed := newKernelMap(t, namedSpec(name))
	expectNoEvent(t, w) // the old map is still in use until its program is closed
	useByProgram(t, renewed)
	user.Close()
	expectEvent(t, w, Replaced, idOf(t, renewed))
	expectNoEvent(t, w)
}

// TestWatchMapWithoutUsersIsGone ends a load balancer. Its map then exists only because this
// process holds it, and is freed when this process closes it.
func TestWatchMapWithoutUsersIsGone(t *testing.T) {
	for _, by := range []string{"name", "id"} {
		t.Run(by, func(t *testing.T) {
			name := uniqueName("watch")
			m := newKernelMap(t, namedSpec(name))
			user, id := useByProgram(t, m), idOf(t, m)
			ref := Ref{Name: name}
			if by == "id" {
				ref = Ref{ID: id}
			}
			w := NewWatcher(ref, 10*time.Millisecond)
			handle := expectEvent(t, w, Appeared, id)
			expectNoEvent(t, w)
			if err := errors.Join(user.Close(), m.Close()); err != nil {
				t.Fatal(err)
			}
			expectEvent(t, w, Gone, id)
			expectNoEvent(t, w) // the map still exists
			if err := handle.Close(); err != nil {
				t.Fatal(err)
			}
			// The kernel frees a map, and a program that uses it, in the background.
			poll.Within(t, 15*poll.Limit, "the map without users is deleted", func() bool {
				_, err := resolvedID(t, ref)
				return errors.Is(err, ErrNotFound)
			})
			expectNoEvent(t, w)
			if by == "name" {
				expectEvent(t, w, Appeared, idOf(t, newKernelMap(t, namedSpec(name))))
			}
		})
	}
}

// TestWatchMapWithoutProgramReappears checks a load balancer that keeps its map while it has no
// program. The map appears again with the next program, or after the time that the kernel needs to
// free it.
func TestWatchMapWithoutProgramReappears(t *testing.T) {
	name := uniqueName("watch")
	m := newKernelMap(t, namedSpec(name))
	user, id := useByProgram(t, m), idOf(t, m)
	w := NewWatcher(Ref{Name: name}, 10*time.Millisecond)
	expectEvent(t, w, Appeared, id)
	expectNoEvent(t, w)
	user.Close()
	expectEvent(t, w, Gone, id)
	expectNoEvent(t, w)
	user = useByProgram(t, m)
	expectEvent(t, w, Appeared, id)
	expectNoEvent(t, w)
	user.Close()
	expectEvent(t, w, Gone, id)
	w.freeGrace = 0
	expectEvent(t, w, Appeared, id)
	expectNoEvent(t, w)
	if err := m.Pin(filepath.Join(bpffs(t), "pin")); err != nil {
		t.Fatal(err)
	}
	w.usage = usage{id: id, used: true}
	expectNoEvent(t, w) // the pin is a user
}

// TestWatchNameWithoutPrograms checks that the newer map is selected if only user space uses the
// maps.
func TestWatchNameWithoutPrograms(t *testing.T) {
	name := uniqueName("watch")
	w := NewWatcher(Ref{Name: name}, 10*time.Millisecond)
	old := newKernelMap(t, namedSpec(name))
	expectEvent(t, w, Appeared, idOf(t, old))
	openMap(t, old, Options{})
	renewed := newKernelMap(t, namedSpec(name))
	expectEvent(t, w, Replaced, idOf(t, renewed))
	expectNoEvent(t, w)
}

// TestWatchReportsLastingErrorOnce checks that Next returns a lasting error once.
func TestWatchReportsLastingErrorOnce(t *testing.T) {
	name := uniqueName("watch")
	first := newKernelMap(t, namedSpec(name))
	second := newKernelMap(t, namedSpec(name))
	w := NewWatcher(Ref{Name: name}, 10*time.Millisecond)
	if _, err := w.Next(t.Context()); !errors.Is(err, ErrAmbiguous) {
		t.Fatalf("Next with two maps of the name: got error %v, want ErrAmbiguous", err)
	}
	expectNoEvent(t, w)
	second.Close()
	expectEvent(t, w, Appeared, idOf(t, first))
	w.Forget()
	expectEvent(t, w, Appeared, idOf(t, first))
	expectNoEvent(t, w)
}
