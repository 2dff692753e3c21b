package drained_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"mapsync/bpf"
	"mapsync/internal/poll"
	"mapsync/syncd/drained"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// mountBPF mounts a BPF filesystem until the end of the test.
func mountBPF(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func closeSums(t *testing.T, s *drained.Sums) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSumsContinueWithoutSyncd drains entries before, during and after the absence of syncd.
func TestSumsContinueWithoutSyncd(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options(filepath.Join(mountBPF(t), "mapsync", "flows"))
		o.Methods = []drained.Method{method}
		m, id := newMap(t, ebpf.Hash)
		open := func() *drained.Sums {
			s, err := drained.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			s.Follow(id)
			return s
		}
		s := open()
		origin := s.Origin()
		put(t, m, 1, value(1, 1, 1))
		drain(t, m, 100)
		closeSums(t, s)
		pinned := method != drained.ByKprobe || kprobesArePinned(t, o.Folder)
		put(t, m, 1, value(1, 2, 10))
		drain(t, m, 100)
		s = open()
		put(t, m, 1, value(1, 3, 100))
		drain(t, m, 100)
		want := "packets 3, flags 3, bytes 111"
		if !pinned {
			want = "packets 2, flags 3, bytes 101"
		}
		if got := sum(t, s, 1); got != want || s.Origin() != origin {
			t.Errorf("sum after a restart: got %s, origin %x, want %s, origin %x", got, s.Origin(), want, origin)
		}
		closeSums(t, s)
		if err := drained.Remove(o.Folder); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(o.Folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("folder after Remove: got %v, want none", err)
		}
		if err := drained.Remove(o.Folder); err != nil {
			t.Errorf("second Remove: got %v, want nil", err)
		}
	})
}

// TestSumsContinueWithOtherPrograms opens the sums again and again with another maximum or another version of the programs,
// as a new release of syncd, while a collector drains the map.
func TestSumsContinueWithOtherPrograms(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options(filepath.Join(mountBPF(t), "flows"))
		o.Methods, o.MaxEntries = []drained.Method{method}, 1000
		m, id := newMap(t, ebpf.Hash)
		s, err := drained.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Follow(id)
		origin := s.Origin()
		other := append(key(1), "elsewher"...)
		if err := s.Map().Put(other, value(7, 7, 7)); err != nil {
			t.Fatal(err)
		}
		c := startCollector(t, m)
		const rounds = 6
		for round := range rounds {
			closeSums(t, s)
			if round%2 == 0 {
				o.MaxEntries += 100
			} else {
				changeState(t, o.Folder, func(st *bpf.DrainDrainState) { st.Version++ })
			}
			if s, err = drained.Open(o); err != nil {
				t.Fatal(err)
			}
			if method != drained.ByKprobe {
				c.checkLost(s)
			}
		}
		c.end()
		// The kernel skips the end of a call in progress for each program that is attached or detached. With another order
		// than newest_begins_first states, each call would count.
		attached := method != drained.ByKprobe || kprobesArePinned(t, o.Folder) // without syncd, too
		if got, most := s.Stats().Missed, uint64(rounds*4); attached && got > most {
			t.Errorf("missed calls: got %d, want at most %d", got, most)
		}
		if method == drained.ByKprobe {
			closeSums(t, s)
			return // the kernel may skip both programs of a call, and before 5.15 nothing adds without syncd
		}
		poll.Eventually(t, "the end of all calls", func() bool { _, ended := s.Calls(); return ended })
		missed, unread := s.Stats().Missed, s.Stats().Unread
		for k := range collectorKeys {
			if got, want := sum(t, s, k), fmt.Sprintf("bytes %d", c.bytes[k]); !strings.HasSuffix(got, want) && missed+unread == 0 {
				t.Errorf("sum of key %d: got %s, want %s", k, got, want)
			}
		}
		if method == drained.ByFexit {
			missed = 0 // calls in progress while programs were attached
		}
		if st := s.Stats(); s.Origin() != origin || st.Full+missed != 0 || unread > maxUnread*collectorBatch {
			t.Errorf("origin and stats: got %x, %+v, want %x, nothing missing and at most %d unread", s.Origin(), st, origin, maxUnread*collectorBatch)
		}
		if v, err := s.Map().LookupBytes(other); err != nil || string(v) != string(value(7, 7, 7)) {
			t.Errorf("sum of another host: got %x, error %v, want it", v, err)
		}
		pins, err := os.ReadDir(o.Folder)
		if err != nil || len(pins) > 8 {
			t.Errorf("pins: got %v, error %v, want those of one generation", pins, err)
		}
		closeSums(t, s)
	})
}

// TestSumsContinueAfterKill: a syncd that was killed while it attached other programs has left pins, which never added.
func TestSumsContinueAfterKill(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options(filepath.Join(mountBPF(t), "flows"))
		o.Methods = []drained.Method{method}
		m, id := newMap(t, ebpf.Hash)
		s, err := drained.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Follow(id)
		put(t, m, 1, value(1, 1, 1))
		drain(t, m, 10)
		closeSums(t, s)
		for _, name := range []string{"sums-2", "next-2"} {
			left, _ := newMap(t, ebpf.Hash)
			if err := left.Pin(filepath.Join(o.Folder, name)); err != nil {
				t.Fatal(err)
			}
		}
		for round := range 2 {
			o.MaxEntries -= 10
			if s, err = drained.Open(o); err != nil {
				t.Fatal(err)
			}
			put(t, m, 1, value(1, 1, 1))
			drain(t, m, 10)
			if got, want := sum(t, s, 1), fmt.Sprintf("packets %d, flags 1, bytes %[1]d", round+2); got != want {
				t.Errorf("sum: got %s, want %s", got, want)
			}
			pin, err := ebpf.LoadPinnedMap(filepath.Join(o.Folder, fmt.Sprint("sums-", round+2)), nil)
			if err != nil {
				t.Fatal(err)
			}
			if pin.MaxEntries() != uint32(o.MaxEntries) {
				t.Errorf("pinned sums: got room for %d, want %d", pin.MaxEntries(), o.MaxEntries)
			}
			pin.Close()
			closeSums(t, s)
		}
	})
}

// changeState changes the pinned state.
func changeState(t *testing.T, folder string, change func(*bpf.DrainDrainState)) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(folder, "state"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	memory, err := unix.Mmap(m.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	change((*bpf.DrainDrainState)(unsafe.Pointer(&memory[0])))
	if err := unix.Munmap(memory); err != nil {
		t.Fatal(err)
	}
}

// TestSumsFollowAnotherType replaces a map with one of another type and the same sizes: other functions of the kernel
// drain it.
func TestSumsFollowAnotherType(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options(filepath.Join(mountBPF(t), "flows"))
		o.Methods = []drained.Method{method}
		for round, typ := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash, ebpf.Hash} {
			o.Type = typ
			m, id := newMap(t, typ)
			s, err := drained.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			s.Follow(id)
			put(t, m, 1, value(1, 1, 1))
			drain(t, m, 10)
			if got, want := sum(t, s, 1), fmt.Sprintf("packets %d, flags 1, bytes %d", round+1, round+1); got != want {
				t.Errorf("sum with type %s: got %s, want %s", typ, got, want)
			}
			closeSums(t, s)
		}
	})
}

// TestCallsWithoutEnd: a call whose end no program has seen counts as ended after a time, and as missed.
func TestCallsWithoutEnd(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options(filepath.Join(mountBPF(t), "flows"))
		o.Methods = []drained.Method{method}
		s := openSums(t, o)
		changeState(t, o.Folder, func(st *bpf.DrainDrainState) { st.Entered += 2 })
		calls, err := ebpf.LoadPinnedMap(filepath.Join(o.Folder, "calls"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer calls.Close()
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			t.Fatal(err)
		}
		for thread, began := range map[uint64]int64{1: now.Nano() - 11e9, 2: now.Nano()} {
			if err := calls.Put(thread, bpf.DrainDrainCall{Began: uint64(began), Generation: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if _, ended := s.Calls(); ended {
			t.Error("calls without an end: got all ended, want not")
		}
		if got := s.Stats(); got != (drained.Stats{Missed: 1}) {
			t.Errorf("stats: got %+v, want one missed call", got)
		}
		if err := calls.Delete(uint64(2)); err != nil {
			t.Fatal(err)
		}
		changeState(t, o.Folder, func(st *bpf.DrainDrainState) { st.Left++ })
		if begun, ended := s.Calls(); !ended || begun != 2 {
			t.Errorf("calls: got %d, ended %t, want 2, all ended", begun, ended)
		}
	})
}

// kprobesArePinned reports whether the folder has a pinned link. Kernels before 5.15 cannot pin a kprobe.
func kprobesArePinned(t *testing.T, folder string) bool {
	t.Helper()
	links, err := filepath.Glob(filepath.Join(folder, "link-*"))
	return err == nil && len(links) > 0
}

func TestSumsBeginAgainWithAnotherLayout(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options(filepath.Join(mountBPF(t), "flows"))
		o.Methods = []drained.Method{method}
		s := openSums(t, o)
		o.ValueSize += 8
		if other := openSums(t, o); other.Origin() == s.Origin() || other.Map().ValueSize() != uint32(o.ValueSize) {
			t.Errorf("sums of another layout: got origin %x and values of %d bytes, want another origin than %x and %d",
				other.Origin(), other.Map().ValueSize(), s.Origin(), o.ValueSize)
		}
	})
}

// TestFolderOfOthersIsRefused: another user could choose the sums.
func TestFolderOfOthersIsRefused(t *testing.T) {
	dir := mountBPF(t)
	folder := filepath.Join(dir, "flows")
	if err := os.Mkdir(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if s, err := drained.Open(options(folder)); err == nil {
		closeSums(t, s)
		t.Error("folder to which others can write: got nil, want an error")
	}
	if err := drained.Remove(folder); err == nil {
		t.Error("Remove a folder to which others can write: got nil, want an error")
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(folder, link); err != nil {
		t.Fatal(err)
	}
	if s, err := drained.Open(options(filepath.Join(link, "flows"))); err == nil {
		closeSums(t, s)
		t.Error("folder below a symbolic link: got nil, want an error")
	}
}

// TestFolderInAnotherFilesystem: the sums begin without pins.
func TestFolderInAnotherFilesystem(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options(filepath.Join(t.TempDir(), "flows"))
		o.Methods = []drained.Method{method}
		openSums(t, o)
		if _, err := os.Stat(o.Folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("folder: got %v, want none", err)
		}
	})
}
