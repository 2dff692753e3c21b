package kmap

import (
	"math"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

func TestCallsAreMeasured(t *testing.T) {
	count := func(kind CallKind) uint64 { return Calls()[kind].Count }
	before := Calls()
	k := openMap(t, newKernelMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: testKey, ValueSize: testValue, MaxEntries: 1000}), Options{})
	put(t, k, 0, 500, 1)
	if count(CallProgram) <= before[CallProgram].Count {
		t.Errorf("calls of programs after 500 writes: got %d, want more than %d", count(CallProgram), before[CallProgram].Count)
	}
	elements := count(CallElement)
	key, value := entry(1, 0, testKey, testValue)
	if err := mapElem(cmdMapLookupElem, k.m.FD(), key, value, 0); err != nil {
		t.Fatal(err)
	}
	if count(CallElement) != elements+1 {
		t.Errorf("calls for one entry: got %d, want %d", count(CallElement), elements+1)
	}
}

// TestReadsAreBounded: no call reads more than readEntries entries, so that none takes long.
func TestReadsAreBounded(t *testing.T) {
	const n = 16 * readEntries
	for name, c := range map[string]struct {
		spec *ebpf.MapSpec
		opts Options
	}{
		"program":     {hashSpec(testKey, testValue, n), Options{}},
		"batch":       {hashSpec(testKey, testValue, n), Options{NoProgram: true}},
		"per-CPU":     {perCPUSpec(ebpf.PerCPUHash, testKey, testValue, n), Options{}},
		"per-CPU LRU": {perCPUSpec(ebpf.LRUCPUHash, testKey, testValue, 4*n), Options{}}, // room for the lists of all CPUs
		"large lock":  {withFlags(lockSpec(8192, 8, n), noPrealloc), Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			k := openMap(t, newKernelMap(t, c.spec), c.opts)
			put(t, k, 0, n, 1)
			read, most := 0, 0
			err := k.Read(t.Context(), func() int64 { return 0 }, func(_ int64, keys, _ []byte) error {
				count := len(keys) / k.info.KeySize
				read, most = read+count, max(most, count)
				return nil
			})
			if err != nil || read != n || most > readEntries {
				t.Errorf("read: got %d entries, at most %d in a call, error %v, want %d entries, at most %d in a call", read, most, err, n, readEntries)
			}
		})
	}
}

// TestEmptyBucketsAreBounded: no call passes more than maxEmpty empty buckets.
func TestEmptyBucketsAreBounded(t *testing.T) {
	const buckets, maxEmpty = 1 << 18, 1 << 14
	k := openMap(t, newKernelMap(t, hashSpec(testKey, testValue, buckets)), Options{})
	calls := 0
	err := k.Read(t.Context(), func() int64 { return 0 }, func(int64, []byte, []byte) error { calls++; return nil })
	if err != nil || calls < buckets/maxEmpty {
		t.Errorf("read of an empty map: got %d calls, error %v, want at least %d for %d buckets", calls, err, buckets/maxEmpty, buckets)
	}
}

// TestWaitsAreNotMeasured: a call that waits does not have the processor.
func TestWaitsAreNotMeasured(t *testing.T) {
	const wait = 50 * time.Millisecond
	before := Calls()[CallBatch]
	start := startCall()
	time.Sleep(wait) // the call does not use the processor for this time
	CallBatch.ended(start)
	after := Calls()[CallBatch]
	if n, took := after.Count-before.Count, after.Sum-before.Sum; n != 1 || took >= wait {
		t.Errorf("calls after a wait of %s: got %d in %s, want 1 in less", wait, n, took)
	}
}

// TestLongestCalls: each second has its longest call.
func TestLongestCalls(t *testing.T) {
	const kind = CallIterator // no other test of this package runs meanwhile
	count := func(at, d time.Duration) {
		t.Helper()
		recentStart = time.Now().Add(-at)
		kind.count(d)
	}
	want := func(at, window, longest time.Duration) {
		t.Helper()
		recentStart = time.Now().Add(-at)
		if got := LongestCalls(window)[kind]; got != longest {
			t.Errorf("longest call in %s at %s: got %s, want %s", window, at, got, longest)
		}
	}
	start := recentStart
	defer func() { recentStart = start }()
	base := time.Since(start) + 2*MaxRecent
	count(base, 7*time.Millisecond)
	count(base, 3*time.Millisecond) // a shorter one in the same second
	count(base+5*time.Second, 4*time.Millisecond)
	want(base+6*time.Second, 10*time.Second, 7*time.Millisecond)
	want(base+6*time.Second, 3*time.Second, 4*time.Millisecond)
	want(base+20*time.Second, 3*time.Second, 0)
	count(base+time.Duration(recentSeconds)*time.Second, time.Millisecond) // takes the place of the first second
	want(base+time.Duration(recentSeconds)*time.Second, MaxRecent, 4*time.Millisecond)
	want(base+time.Duration(recentSeconds)*time.Second, time.Second, time.Millisecond)
	count(base+time.Duration(recentSeconds)*time.Second, time.Hour) // more than an element can hold
	want(base+time.Duration(recentSeconds)*time.Second, time.Second, math.MaxUint32*recentUnit)
}

func TestCallBuckets(t *testing.T) {
	before := Calls()[CallBatch]
	for _, d := range []time.Duration{0, time.Millisecond / 2, 20 * time.Millisecond} {
		CallBatch.count(d)
	}
	CallBatch.ended(startCall() - time.Second)
	after := Calls()[CallBatch]
	if n, took := after.Count-before.Count, after.Sum-before.Sum; n != 4 || took < time.Second || after.Longest < time.Second {
		t.Errorf("calls: got %d in %s, the longest %s, want 4 in more than 1 s, the longest 1 s", n, took, after.Longest)
	}
	// Each bound counts the shorter calls, too. The longest call is above all bounds.
	for seconds, want := range map[float64]uint64{0.1: 3, 0.0001: 1} {
		if got := after.Within[seconds] - before.Within[seconds]; got != want {
			t.Errorf("calls of at most %v s: got %d, want %d", seconds, got, want)
		}
	}
	if CallKind(callKinds-1).String() != "create_sums" {
		t.Errorf("label of the last kind: got %s, want create_sums", CallKind(callKinds-1))
	}
}
