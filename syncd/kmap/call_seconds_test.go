package kmap

import (
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

func TestCallBuckets(t *testing.T) {
	before := Calls()[CallBatch]
	for _, d := range []time.Duration{0, time.Millisecond / 2, 20 * time.Millisecond} {
		CallBatch.count(d)
	}
	CallBatch.ended(time.Now().Add(-time.Second))
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
	if CallKind(callKinds-1).String() != "iterator" {
		t.Errorf("label of the last kind: got %s, want iterator", CallKind(callKinds-1))
	}
}
