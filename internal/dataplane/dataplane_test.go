package dataplane

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"mapsync/internal/poll"
)

func newMap(t *testing.T, typ ebpf.MapType, entries uint32) *ebpf.Map {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: typ, KeySize: 8, ValueSize: 16, MaxEntries: entries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func open(t *testing.T, m *ebpf.Map, o Options) *Program {
	t.Helper()
	p, err := Open(m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func number(n uint64) []byte { return binary.NativeEndian.AppendUint64(nil, n) }

func value(n uint64) []byte { return append(number(n), number(0)...) }

func TestRunMakesEachWriteOnce(t *testing.T) {
	for _, typ := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash} {
		m := newMap(t, typ, 100)
		p := open(t, m, Options{Capacity: 40, RunWrites: 16, NumberValues: true})
		for i := range uint64(20) {
			p.Add(Update, ebpf.UpdateAny, number(i), value(i))
		}
		p.Add(Update, ebpf.UpdateNoExist, number(3), value(99))
		p.Add(Delete, 0, number(4), nil)
		p.Add(Delete, 0, number(77), nil)
		p.Add(InPlace, 0, number(5), value(55))
		failed, err := p.Run()
		if err != nil || failed != 2 || p.Done() != 24 {
			t.Fatalf("Run: got %d of %d writes failed, error %v, want 2 of 24, nil", failed, p.Done(), err)
		}
		if err := p.Result(20); !errors.Is(err, unix.EEXIST) {
			t.Errorf("update of an existing key: got %v, want an error with unix.EEXIST", err)
		}
		if err := p.Result(22); !errors.Is(err, unix.ENOENT) {
			t.Errorf("delete of a missing key: got %v, want an error with unix.ENOENT", err)
		}
		for i := range uint64(20) {
			var got [2]uint64
			err := m.Lookup(i, &got)
			switch {
			case i == 4 && !errors.Is(err, ebpf.ErrKeyNotExist):
				t.Errorf("deleted key: got error %v, want an error with ebpf.ErrKeyNotExist", err)
			case i == 4:
			case err != nil:
				t.Errorf("key %d: got error %v, want nil", i, err)
			case i == 5 && got[0] != 55, i != 5 && got != [2]uint64{i, i + 1}:
				t.Errorf("key %d: got value %v, want [55 ...] for key 5, and %v otherwise", i, got, [2]uint64{i, i + 1})
			}
		}
	}
}

func TestInPlaceWriteOffset(t *testing.T) {
	m := newMap(t, ebpf.Hash, 10)
	p := open(t, m, Options{Capacity: 2, RunWrites: 2, InPlaceOffset: 8})
	p.Add(Update, ebpf.UpdateAny, number(1), append(number(10), number(11)...))
	p.Add(InPlace, 0, number(1), append(number(20), number(21)...))
	if failed, err := p.Run(); err != nil || failed != 0 {
		t.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
	}
	var got [2]uint64
	if err := m.Lookup(uint64(1), &got); err != nil || got != [2]uint64{10, 21} {
		t.Errorf("value: got %v, error %v, want [10 21] and nil", got, err)
	}
}

// TestScheduledWrites makes the runs of a list by a timer and by an iterator.
func TestScheduledWrites(t *testing.T) {
	for name, run := range map[string]func(p *Program) error{
		"timer": (*Program).RunByTimer, "iterator": (*Program).RunByIterator,
	} {
		t.Run(name, func(t *testing.T) {
			m := newMap(t, ebpf.Hash, 10)
			p := open(t, m, Options{Capacity: 5, RunWrites: 3})
			for i := range uint64(5) {
				p.Add(Update, ebpf.UpdateAny, number(i), value(i))
			}
			for _, want := range []uint64{3, 5} {
				err := run(p)
				if name == "timer" && errors.Is(HasTimers(), ebpf.ErrNotSupported) || name == "iterator" && errors.Is(err, unix.EPERM) {
					t.Skip("this kernel has no such programs: ", err)
				}
				if err != nil || p.Done() != want || p.Failed() != 0 {
					t.Fatalf("run: got %d writes, %d failed, error %v, want %d writes", p.Done(), p.Failed(), err, want)
				}
			}
		})
	}
}

func TestPacketsWriteOnSteeredCPU(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs a second CPU to steer packets to")
	}
	m := newMap(t, ebpf.Hash, 100)
	for _, cpu := range []int{1, 0} {
		restore, err := SteerLoopback(cpu)
		if errors.Is(err, fs.ErrNotExist) {
			t.Skip("this kernel cannot steer packets (CONFIG_RPS)")
		}
		if err != nil {
			t.Fatal(err)
		}
		p := open(t, m, Options{Capacity: 10, RunWrites: 2, Endless: true})
		for i := range uint64(10) {
			p.Add(Update, ebpf.UpdateAny, number(i), value(i))
		}
		r, err := p.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Send(p, 1-cpu, 15); err != nil {
			t.Fatal(err)
		}
		// The other CPU may process the last packets later.
		poll.Within(t, 10*time.Second, "30 writes", func() bool { return p.Done() >= 30 }, func() any { return p.Done() })
		if p.Done() != 30 || p.Failed() != 0 || p.LastCPU() != cpu {
			t.Errorf("writes: got %d, %d failed, the last on CPU %d, want CPU %d", p.Done(), p.Failed(), p.LastCPU(), cpu)
		}
		stop := r.Flood(1-cpu, 0)
		time.Sleep(50 * time.Millisecond) // the duration of the load
		if sent, err := stop(); err != nil || sent == 0 {
			t.Errorf("Flood: got %d packets sent, error %v, want at least one and nil", sent, err)
		}
		if err := errors.Join(r.Close(), restore()); err != nil {
			t.Error(err)
		}
		if p.Done() <= 30 || p.LastCPU() != cpu {
			t.Errorf("Flood: got %d writes, the last on CPU %d, want CPU %d", p.Done()-30, p.LastCPU(), cpu)
		}
	}
}
