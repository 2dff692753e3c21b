package kmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

func perCPUSpec(typ ebpf.MapType, key, value, entries uint32) *ebpf.MapSpec {
	return withType(hashSpec(key, value, entries), typ)
}

// perCPUMethod returns the expected access methods of a per-CPU map on this kernel. Programs look up
// the values of other CPUs from 5.19 on.
func perCPUMethod(t *testing.T) AccessMethods {
	code, err := features.LinuxVersionCode()
	if err != nil {
		t.Fatal(err)
	}
	if code >= 5<<16|19<<8 {
		return AccessMethods{Read: ByBuckets, Lookup: ByProgram, Write: ByBatch}
	}
	return AccessMethods{Read: ByBuckets, Lookup: BySingle, Write: ByBatch}
}

func TestRoundTripPerCPU(t *testing.T) {
	for _, c := range []struct {
		name string
		spec *ebpf.MapSpec
	}{
		{"4+8", perCPUSpec(ebpf.PerCPUHash, 4, 8, 3000)},
		{"odd 5+3", perCPUSpec(ebpf.PerCPUHash, 5, 3, 3000)},
		{"flow 48+176", perCPUSpec(ebpf.PerCPUHash, 48, 176, 5000)},
		{"no prealloc", withFlags(perCPUSpec(ebpf.PerCPUHash, 16, 36, 1000), noPrealloc)},
		{"lru", perCPUSpec(ebpf.LRUCPUHash, 16, 36, 10000)},
		{"largest", perCPUSpec(ebpf.PerCPUHash, 512, largestElem(0), 60)},
		{"large lru", perCPUSpec(ebpf.LRUCPUHash, 512, largestElem(seqBytes), 600)},
		{"largest to iterate over", perCPUSpec(ebpf.PerCPUHash, 8, largestElem(seqBytes-16), 60)},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := openMap(t, newKernelMap(t, c.spec), Options{})
			got := k.AccessMethods()
			if got.Reason == nil || !errors.Is(got.Reason, errPerCPU) {
				t.Errorf("reason: got %v, want errPerCPU", got.Reason)
			}
			if got.Reason = nil; got != perCPUMethod(t) {
				t.Errorf("access methods: got %+v, want %+v", got, perCPUMethod(t))
			}
			testRoundTrip(t, k)
		})
		t.Run(c.name+" without buckets", func(t *testing.T) {
			k := openMap(t, newKernelMap(t, c.spec), Options{})
			withoutBuckets(t, k)
			testRoundTrip(t, k)
		})
		t.Run(c.name+" by bpf(2)", func(t *testing.T) {
			k := openMap(t, newKernelMap(t, c.spec), Options{NoProgram: true})
			testRoundTrip(t, k)
			k.accessMethods.Write, k.syscallWriter.batched = BySingle, false
			testRoundTrip(t, k)
		})
	}
}

// largestElem returns the largest size of one CPU's value with which the values of all CPUs have at
// most total bytes. 0 selects the maximum total.
func largestElem(total int) uint32 {
	const kernels = 32 << 10 // PCPU_MIN_UNIT_SIZE
	if total == 0 {
		total = MaxPerCPUValueSize
	}
	return uint32(min(kernels, total/ebpf.MustPossibleCPU()&^7))
}

// TestPerCPUPadding checks that bytes written into the padding between the values of CPUs are not
// content. Kernels up to 6.x store them and return them with the values. Later kernels do not.
func TestPerCPUPadding(t *testing.T) {
	for _, o := range []Options{{}, {NoProgram: true}} {
		k := openMap(t, newKernelMap(t, perCPUSpec(ebpf.PerCPUHash, 8, 5, 10)), o)
		key, value := entry(1, 1, 8, k.info.ValueSize)
		if err := mapElem(cmdMapUpdateElem, k.m.FD(), key, value, 0); err != nil {
			t.Fatal(err)
		}
		raw := make([]byte, len(value))
		if err := mapElem(cmdMapLookupElem, k.m.FD(), key, raw, 0); err != nil || !bytes.Equal(k.expectedLookup(raw), k.expectedLookup(value)) {
			t.Fatalf("bpf(2) lookup: got %x, error %v, want %x", raw, err, value)
		}
		t.Logf("the kernel stores padding: %v", bytes.Equal(raw, value))
		checkContent(t, k, 1, 2, 1)
	}
}

// TestSyncerPerCPU checks both directions. A program that updates an entry changes the value of one
// CPU, and the syncer rereads the whole entry. A delta of a peer is written for all CPUs.
func TestSyncerPerCPU(t *testing.T) {
	m := openMap(t, newKernelMap(t, perCPUSpec(ebpf.PerCPUHash, 8, 12, 100)), Options{})
	tab, err := table.New(table.Options{
		Self: table.Owner{Node: "here", Incarnation: 2}, KeySize: m.info.KeySize, ValueSize: m.info.ValueSize,
	})
	if err != nil {
		t.Fatal(err)
	}
	b := newSyncFixture(t, tab, m)
	holds := func(key, value []byte) func() bool {
		return func() (same bool) {
			var rec table.Record
			tab.View(func(tx *table.Tx) { same = tx.Get(key, &rec) && bytes.Equal(rec.Value, value) })
			return same
		}
	}
	for g := range 3 {
		key, value := entry(1, g, m.info.KeySize, m.info.ValueSize)
		if err := mapElem(cmdMapUpdateElem, m.m.FD(), key, value, 0); err != nil {
			t.Fatal(err)
		}
		tab.Update(func(tx *table.Tx) { tx.RequestReread(key) })
		poll.Eventually(t, fmt.Sprintf("generation %d", g), holds(key, m.expectedLookup(value)))
	}
	key, value := entry(2, 1, m.info.KeySize, m.info.ValueSize)
	now := time.Now().UnixNano()
	tab.Update(func(tx *table.Tx) {
		d := table.Delta{Key: key, Value: m.expectedLookup(value), Version: table.Version(now), Owner: b.peer}
		if got := tx.Remote(&d, now, table.RemoteOptions{}); got != table.Accepted {
			t.Errorf("delta of the peer: got outcome %v, want %v", got, table.Accepted)
		}
	})
	b.awaitSynced()
	if got, err := m.fromKernel(key); err != nil || !bytes.Equal(got, m.expectedLookup(value)) {
		t.Errorf("entry of the peer: got %x, error %v, want %x", got, err, m.expectedLookup(value))
	}
	b.stop()
	if all := content(t, m); len(all) != 2 {
		t.Errorf("entries: got %d, want 2", len(all))
	}
}

// TestFailedRereadIsRequeued checks that a key whose reread failed is requested again, with and
// without a record.
func TestFailedRereadIsRequeued(t *testing.T) {
	tab := newTable(t, table.Options{})
	m, err := Open(newKernelMap(t, hashSpec(testKey, testValue, 100)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := newSyncFixture(t, tab, m)
	b.remote(1, 2, 1)
	b.awaitSynced()
	b.stop()
	known, _ := entry(1, 0, testKey, testValue)
	unknown, _ := entry(2, 0, testKey, testValue)
	tab.Update(func(tx *table.Tx) { tx.RequestReread(known); tx.RequestReread(unknown) })
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.sync.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "look up") {
			t.Errorf("Run on a closed map: got %v, want a lookup error", err)
		}
	}
	var keys [3 * testKey]byte
	tab.Update(func(tx *table.Tx) {
		n := tx.TakeRereads(keys[:])
		got := string(keys[:n*testKey])
		if n != 2 || !strings.Contains(got, string(known)) || !strings.Contains(got, string(unknown)) {
			t.Errorf("requested rereads: got %d keys %x, want both keys", n, got)
		}
	})
}
