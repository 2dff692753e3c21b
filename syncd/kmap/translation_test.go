package kmap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/poll"
	"mapsync/syncd/reference"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// referringMap is a kernel map whose keys have the id of a service, and values that of a backend.
type referringMap struct {
	*syncFixture
	kernel             *ebpf.Map
	services, backends *reference.Names
	tr                 *reference.Translation
}

// newReferringMap starts the syncer of an empty map.
func newReferringMap(t *testing.T, noProgram bool, services, backends map[uint64]string) *referringMap {
	t.Helper()
	s := &schema.Schema{
		Map: "ct",
		Key: &schema.Message{Name: "k", Size: 4, Fields: []schema.Field{
			{Name: "port", Number: 1, Size: 2, Kind: schema.KindUint, Type: "__u16"},
			{Name: "service", Number: 2, Offset: 2, Size: 2, Kind: schema.KindReference, Reference: "services[vip]", Type: "__u16"},
		}},
		Value: &schema.Message{Name: "v", Size: 8, Fields: []schema.Field{
			{Name: "backend", Number: 1, Size: 4, Kind: schema.KindReference, Reference: "backends[address]", Type: "__u32"},
			{Name: "state", Number: 2, Offset: 4, Size: 4, Kind: schema.KindUint, Type: "__u32"},
		}},
	}
	r := &referringMap{services: reference.NewNames(2), backends: reference.NewNames(4)}
	r.services.Update(services)
	r.backends.Update(backends)
	var err error
	r.tr, err = reference.NewTranslation(s, map[string]*reference.Names{"services[vip]": r.services, "backends[address]": r.backends})
	if err != nil {
		t.Fatal(err)
	}
	tab, err := table.New(table.Options{
		Self: table.Owner{Node: "here", Incarnation: 2}, KeySize: 4, ValueSize: 8, Meanings: r.tr,
		ComparedKey: s.ComparedKey(), Compared: s.Compared(),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.kernel = newKernelMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 1024})
	m, err := Open(r.kernel, Options{Translation: r.tr, NoProgram: noProgram})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	if _, err := LoadAll(t.Context(), m, tab, now); err != nil {
		t.Fatal(err)
	}
	tab.Update(func(tx *table.Tx) { tx.Adopt(1 << 20) })
	r.syncFixture = newSyncFixture(t, tab, m)
	return r
}

func referringEntry(port, service uint16, backend, state uint32) (key, value []byte) {
	key = binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, port), service)
	return key, binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, backend), state)
}

// number returns the number of a meaning.
func number(t *testing.T, n *reference.Names, meaning string) uint32 {
	t.Helper()
	k, ok := n.Index(meaning)
	if !ok {
		t.Fatalf("meaning %s: got no number, want one", meaning)
	}
	return k
}

// receive merges a record of the peer.
func (r *referringMap) receive(port uint16, service, backend string, state uint32) {
	r.t.Helper()
	key, value := referringEntry(port, uint16(number(r.t, r.services, service)), number(r.t, r.backends, backend), state)
	r.tab.Update(func(tx *table.Tx) {
		tx.Remote(&table.Delta{Key: key, Value: value, Version: table.Version(now()), Owner: r.peer}, now(), table.RemoteOptions{})
	})
}

// stored returns the entries of the kernel map: the service, the backend and the state of each port.
func (r *referringMap) stored() string {
	var lines []string
	var key, value []byte
	for it := r.kernel.Iterate(); it.Next(&key, &value); {
		lines = append(lines, fmt.Sprintf("%d %d>%d/%d", binary.NativeEndian.Uint16(key), binary.NativeEndian.Uint16(key[2:]),
			binary.NativeEndian.Uint32(value), binary.NativeEndian.Uint32(value[4:])))
	}
	slices.Sort(lines)
	found := make(map[string]string)
	for _, line := range lines {
		port, rest, _ := strings.Cut(line, " ")
		found[port] += " " + rest
	}
	return fmt.Sprint(found)
}

func (r *referringMap) wantStored(when, want string) {
	r.t.Helper()
	got := ""
	poll.Within(r.t, 10*time.Second, when+": want the entries "+want, func() bool { got = r.stored(); return got == want })
}

// record returns the owner, the version and the meanings of the record of a port; deleted ones do not count.
func (r *referringMap) record(port uint16) (owner string, v table.Version, meaning string) {
	cursor := r.tab.NewCursor(0)
	defer cursor.Close()
	r.tab.View(func(tx *table.Tx) {
		for rec := (table.Record{}); tx.Next(cursor, &rec); {
			if binary.NativeEndian.Uint16(rec.Key) != port || rec.Delete {
				continue
			}
			service, _ := r.services.Name(uint32(binary.NativeEndian.Uint16(rec.Key[2:])))
			backend, _ := r.backends.Name(binary.NativeEndian.Uint32(rec.Value))
			owner, v, meaning = tx.Owner(rec.Owner).Node, rec.Version, meaning+service+">"+backend
		}
	})
	return owner, v, meaning
}

func (r *referringMap) wantMeaning(port uint16, wantOwner, want string) (v table.Version) {
	r.t.Helper()
	owner, v, got := r.record(port)
	if owner != wantOwner || got != want {
		r.t.Errorf("record of port %d: got %s of %s, want %s of %s", port, got, owner, want, wantOwner)
	}
	return v
}

// rescan enters the content of the kernel map, like a scan.
func (r *referringMap) rescan() {
	r.t.Helper()
	r.tab.Update(func(tx *table.Tx) { tx.BeginScan(now()) })
	var reading table.Reading
	begin := func() int64 { r.tab.View(func(tx *table.Tx) { tx.BeginReading(&reading) }); return now() }
	err := r.m.Read(context.Background(), begin, func(at int64, keys, values []byte) error {
		r.tab.Update(func(tx *table.Tx) { tx.AdvanceClock(now()); tx.ScannedAll(&reading, at, keys, values) })
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.tab.Update(func(tx *table.Tx) {
		tx.EndReading(&reading)
		for tx.EndScan(64) {
		}
	})
}

// TestReferences has the ids of referenced maps change below the entries of both nodes.
func TestReferences(t *testing.T) {
	for name, noProgram := range map[string]bool{"by program": false, "by bpf(2)": true} {
		t.Run(name, func(t *testing.T) {
			r := newReferringMap(t, noProgram, map[uint64]string{1: "vip=1", 2: "vip=2"}, map[uint64]string{5: "m", 6: "n"})
			key, value := referringEntry(10, 1, 5, 1)
			if err := r.kernel.Put(key, value); err != nil { // the load balancer of this node
				t.Fatal(err)
			}
			r.rescan()
			own := r.wantMeaning(10, "here", "vip=1>m")
			r.receive(20, "vip=2", "n", 1)
			r.wantStored("a peer's entry", "map[10: 1>5/1 20: 2>6/1]")
			peers := r.wantMeaning(20, "there", "vip=2>n")

			// The ids of both backends change. The entry of this node has another meaning, that of the peer another id.
			r.backends.Update(map[uint64]string{5: "o", 9: "m", 7: "n"})
			r.wantStored("other backends", "map[10: 1>5/1 20: 2>7/1]")
			poll.Within(t, 10*time.Second, "the meaning of the own entry has changed", func() bool { _, v, got := r.record(10); return got == "vip=1>o" && v > own })
			r.rescan()
			if v := r.wantMeaning(20, "there", "vip=2>n"); v != peers {
				t.Errorf("version of the peer's record: got %d, want %d", v, peers)
			}

			// The id of a service changes: the entries of both nodes get new keys, and neither is deleted.
			r.services.Confirm(now()) // the load balancer has written the entry before
			r.services.Update(map[uint64]string{3: "vip=1", 1: "vip=2", 2: "vip=9"})
			r.wantStored("other services", "map[10: 3>5/1 20: 1>7/1]")
			r.rescan()
			r.wantMeaning(10, "here", "vip=1>o")
			if v := r.wantMeaning(20, "there", "vip=2>n"); v != peers {
				t.Errorf("version of the peer's record after its key has moved: got %d, want %d", v, peers)
			}
			if st := r.tab.Stats(); st.Tombstones != 0 {
				t.Errorf("deleted records: got %d, want none", st.Tombstones)
			}
		})
	}
}

// TestUnknownMeanings has entries of a peer whose backend this node lacks, at first or later.
func TestUnknownMeanings(t *testing.T) {
	r := newReferringMap(t, false, map[uint64]string{1: "vip=1"}, map[uint64]string{5: "m"})
	r.receive(10, "vip=1", "x", 1)
	r.receive(20, "vip=1", "m", 1)
	r.receive(30, "vip=8", "m", 1)
	r.wantStored("an unknown backend and service", "map[20: 1>5/1]")
	poll.Within(t, 10*time.Second, "two entries without an id", func() bool { return r.tab.Stats().Failed == 2 })
	if s := r.sync.Stats(); s.FailedWithoutID < 2 || s.LastFailure != "id" {
		t.Errorf("refused writes: got %d without an id, last failure %q, want at least 2 and id", s.FailedWithoutID, s.LastFailure)
	}
	r.backends.Update(map[uint64]string{5: "m", 6: "x"})
	r.services.Update(map[uint64]string{1: "vip=1", 2: "vip=8"})
	r.wantStored("the backend and the service have come", "map[10: 1>6/1 20: 1>5/1 30: 2>5/1]")

	// A backend disappears: the entry keeps its id, until that means something else.
	r.backends.Update(map[uint64]string{5: "m"})
	time.Sleep(3 * translationInterval) // nothing happens meanwhile
	r.wantStored("a backend has disappeared", "map[10: 1>6/1 20: 1>5/1 30: 2>5/1]")
	r.backends.Update(map[uint64]string{5: "m", 6: "y"})
	r.wantStored("its id means something else", "map[20: 1>5/1 30: 2>5/1]")
	r.rescan()
	r.wantMeaning(10, "there", "vip=1>x")
	r.backends.Update(map[uint64]string{5: "m", 6: "y", 7: "x"})
	r.wantStored("the backend is back", "map[10: 1>7/1 20: 1>5/1 30: 2>5/1]")

	// A delete of the peer removes the entry under its present key.
	key, _ := referringEntry(30, uint16(number(t, r.services, "vip=8")), 0, 0)
	r.tab.Update(func(tx *table.Tx) {
		tx.Remote(&table.Delta{Key: key, Delete: true, Version: table.Version(now()), Owner: r.peer}, now(), table.RemoteOptions{})
	})
	r.wantStored("a delete", "map[10: 1>7/1 20: 1>5/1]")
}

// TestOwnUnknownID has an entry of this node's load balancer with an id that the referenced map gets later.
func TestOwnUnknownID(t *testing.T) {
	r := newReferringMap(t, false, map[uint64]string{1: "vip=1"}, nil)
	key, value := referringEntry(10, 1, 5, 1)
	if err := r.kernel.Put(key, value); err != nil {
		t.Fatal(err)
	}
	r.rescan()
	before := r.wantMeaning(10, "here", "vip=1>")
	r.backends.Update(map[uint64]string{5: "m"})
	poll.Within(t, 10*time.Second, "the entry has a meaning", func() bool { _, v, got := r.record(10); return got == "vip=1>m" && v > before })
	r.wantStored("the id is known", "map[10: 1>5/1]")
}

// TestTranslationOfReads checks lookups of records, also of keys that the map cannot have.
func TestTranslationOfReads(t *testing.T) {
	r := newReferringMap(t, false, map[uint64]string{4: "vip=1"}, map[uint64]string{5: "m"})
	r.receive(10, "vip=1", "m", 7)
	r.wantStored("a peer's entry", "map[10: 4>5/7]")
	known, _ := referringEntry(10, uint16(number(t, r.services, "vip=1")), 0, 0)
	unknown, _ := referringEntry(10, uint16(number(t, r.services, "vip=2")), 0, 0)
	var found []bool
	err := r.m.Lookup(append(append([]byte(nil), known...), unknown...), func(i int, key, value []byte, ok bool) {
		found = append(found, ok)
		if want := [][]byte{known, unknown}[i]; string(key) != string(want) {
			t.Errorf("key %d: got %x, want %x", i, key, want)
		}
		if ok && binary.NativeEndian.Uint32(value) != number(t, r.backends, "m") {
			t.Errorf("value: got %x, want the number of the meaning", value)
		}
	})
	if err != nil || fmt.Sprint(found) != "[true false]" {
		t.Errorf("Lookup: got %v and error %v, want the first key only", found, err)
	}
	if err := r.m.Batch().Add(make([]byte, 3), nil); err == nil || errors.Is(err, ErrBatchFull) {
		t.Errorf("key of 3 bytes: got error %v, want one about its size", err)
	}
}
