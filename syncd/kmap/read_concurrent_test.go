package kmap

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// within runs do in another goroutine and fails the test if it does not return within [poll.Limit].
func within(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(poll.Limit):
		t.Fatalf("%s: got no return within %s, want one", what, poll.Limit)
	}
}

// TestReadsDoNotWaitForAReader: while the receiver of one read blocks, other reads return all entries, the first one
// continues where it was, and Close ends it.
func TestReadsDoNotWaitForAReader(t *testing.T) {
	const n = 2000
	for name, c := range map[string]struct {
		spec *ebpf.MapSpec
		opts Options
		want AccessMethod
	}{
		"buckets":  {hashSpec(testKey, testValue, n), Options{}, ByBuckets},
		"batches":  {hashSpec(testKey, testValue, n), Options{NoProgram: true}, ByBatch},
		"iterator": {withFlags(hashSpec(testKey, testValue, n), unix.BPF_F_ZERO_SEED), Options{}, iteratorOr(t, ByBatch)},
		"array":    {&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: testValue, MaxEntries: n}, Options{}, ByProgram},
	} {
		t.Run(name, func(t *testing.T) {
			k := openMap(t, newKernelMap(t, c.spec), c.opts)
			if got := k.AccessMethods().Read; got != c.want {
				t.Fatalf("access method: got %s, want %s", got, c.want)
			}
			put(t, k, 0, n, 1)
			read := func(during func()) (entries int, err error) {
				seen := map[string]bool{}
				err = k.ForEach(t.Context(), func(key, _ []byte) error {
					seen[string(key)] = true
					if during != nil && len(seen) == n/2 {
						during()
					}
					return nil
				})
				return len(seen), err
			}
			within(t, "read during a read", func() {
				var inner int
				outer, err := read(func() { inner, _ = read(nil) })
				if err != nil || outer != n || inner != n {
					t.Errorf("read during a read: got %d and %d entries, error %v, want %d each", outer, inner, err, n)
				}
			})
			within(t, "close during a read", func() {
				if _, err := read(func() { _ = k.Close() }); err == nil {
					t.Error("read of a map that is closed meanwhile: got no error, want one")
				}
			})
			if _, err := read(nil); !errors.Is(err, os.ErrClosed) {
				t.Errorf("read of a closed map: got error %v, want %v", err, os.ErrClosed)
			}
		})
	}
}

// TestStoredDuringPausedScan: a pause of a scan in progress does not stop the search for sums to remove.
func TestStoredDuringPausedScan(t *testing.T) {
	const sums, originSize = 100, 4
	source := openMap(t, newKernelMap(t, hashSpec(testKey-originSize, testValue, sums)), Options{})
	put(t, source, 0, sums, 1)
	origin := bytes.Repeat([]byte{7}, originSize)
	raw := newKernelMap(t, hashSpec(testKey, testValue, sums))
	for n := range sums {
		key, value := entry(n, 1, testKey-originSize, testValue)
		if err := raw.Put(append(key, origin...), value); err != nil {
			t.Fatal(err)
		}
	}
	k := openMap(t, raw, Options{Drained: &Drained{
		Source: source, Origin: origin, Calls: func() (uint64, bool) { return 0, true },
	}})
	budget := NewScanBudget(1)
	tab := newTable(t, table.Options{})
	s, err := NewScanner(tab, k, ScannerOptions{Budget: budget, Now: func() int64 {
		budget.Pause(time.Now().Add(time.Hour)) // in the middle of the scan
		return time.Now().UnixNano()
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.scan(ctx, time.Now()) }()
	poll.Eventually(t, "the scan has read entries", func() bool { return tab.Stats().Scanned > 0 })
	defer func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("scan in a pause: got error %v, want %v", err, context.Canceled)
		}
	}()
	within(t, "sums while the scan is paused", func() {
		stored := 0
		err := k.Stored(t.Context(), func([]byte) error { stored++; return nil })
		if err != nil || stored != sums {
			t.Errorf("sums while the scan is paused: got %d, error %v, want %d", stored, err, sums)
		}
	})
}
