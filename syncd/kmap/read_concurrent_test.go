package kmap

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"mapsync/internal/poll"
)

// within runs do in another goroutine and fails the test if it does not return within [poll.Limit].
func within(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	poll.Eventually(t, what+" returns", func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}

// TestReadsDoNotWaitForAReader: while the receiver of one read blocks, other reads return all entries, the first one
// continues where it was, and Close ends it.
func TestReadsDoNotWaitForAReader(t *testing.T) {
	const n = 2000
	for name, c := range map[string]struct {
		spec           *ebpf.MapSpec
		opts           Options
		want           AccessMethod
		withoutBuckets bool
	}{
		"buckets":         {hashSpec(testKey, testValue, n), Options{}, ByBuckets, false},
		"batches":         {hashSpec(testKey, testValue, n), Options{NoProgram: true}, ByBatch, false},
		"without buckets": {hashSpec(testKey, testValue, n), Options{}, ByBuckets, true},
		"array":           {&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: testValue, MaxEntries: n}, Options{}, ByProgram, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := openMap(t, newKernelMap(t, c.spec), c.opts)
			if got := k.AccessMethods().Read; got != c.want {
				t.Fatalf("access method: got %s, want %s", got, c.want)
			}
			if c.withoutBuckets {
				withoutBuckets(t, k)
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
