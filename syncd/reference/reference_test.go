package reference

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"mapsync/syncd/schema"
)

const (
	services = "services[vip]"
	backends = "backends[address]"
)

// entries returns the schema of entries with the id of a service in the key and that of a backend in the value.
func entries() *schema.Schema {
	return &schema.Schema{
		Map: "ct",
		Key: &schema.Message{Name: "k", Size: 4, Fields: []schema.Field{
			{Name: "port", Number: 1, Size: 2, Kind: schema.KindUint, Type: "__u16"},
			{Name: "service", Number: 2, Offset: 2, Size: 2, Kind: schema.KindReference, Reference: services, Type: "__u16"},
		}},
		Value: &schema.Message{Name: "v", Size: 8, Fields: []schema.Field{
			{Name: "backend", Number: 1, Size: 4, Kind: schema.KindReference, Reference: backends, Type: "__u32"},
			{Name: "state", Number: 2, Offset: 4, Size: 4, Kind: schema.KindUint, Type: "__u32"},
		}},
	}
}

// host is one node's referenced maps and the translation of its entries.
type host struct {
	services, backends *Names
	*Translation
}

func newHost(t testing.TB, services, backends map[uint64]string) *host {
	t.Helper()
	h := &host{services: NewNames(2), backends: NewNames(4)}
	h.services.Update(services)
	h.backends.Update(backends)
	var err error
	h.Translation, err = NewTranslation(entries(), map[string]*Names{"services[vip]": h.services, "backends[address]": h.backends})
	if err != nil {
		t.Fatalf("NewTranslation: got error %v, want nil", err)
	}
	return h
}

func entry(port, service uint16, backend uint32) (key, value []byte) {
	key, value = make([]byte, 4), make([]byte, 8)
	store(key[:2], uint64(port))
	store(key[2:], uint64(service))
	store(value[:4], uint64(backend))
	return key, value
}

// inTable returns an entry of the kernel map as the table has it.
func (h *host) inTable(port, service uint16, backend uint32) (key, value []byte) {
	key, value = entry(port, service, backend)
	h.FromKernel(key, value)
	return key, value
}

// wantID checks what the kernel map gets for a record.
func (h *host) wantID(t *testing.T, key, value []byte, service, backend uint64) {
	t.Helper()
	k, v := bytes.Clone(key), bytes.Clone(value)
	if ok, _ := h.ToKernel(k, v); !ok || load(k[2:]) != service || load(v[:4]) != backend {
		t.Errorf("ToKernel: got ids %d and %d, ok %t, want %d and %d", load(k[2:]), load(v[:4]), ok, service, backend)
	}
}

// change updates the backends, and returns whether a record is affected.
func (h *host) change(key, value []byte, backends map[uint64]string) bool {
	h.backends.Update(backends)
	c := h.Changes()
	affected := c.Affects(key, value)
	c.Apply()
	return affected
}

// TestRenumbered has the ids of backends change: a record keeps its meaning.
func TestRenumbered(t *testing.T) {
	h := newHost(t, map[uint64]string{1: "vip=1"}, map[uint64]string{5: "m", 6: "n"})
	key, value := h.inTable(80, 1, 5)
	h.wantID(t, key, value, 1, 5)
	if !h.change(key, value, map[uint64]string{5: "n", 7: "m"}) {
		t.Error("renumbered: got no change for the record, want one")
	}
	h.wantID(t, key, value, 1, 7)
	_, other := h.inTable(80, 1, 5) // the owner's load balancer has left its entry as it is
	if bytes.Equal(other, value) {
		t.Error("id with another meaning: got the same number, want another one")
	}
	if name, _ := h.backends.Name(uint32(load(other[:4]))); name != "n" {
		t.Errorf("id with another meaning: got %q, want n", name)
	}
	if h.change(key, value, map[uint64]string{5: "n", 7: "m", 8: "o"}) {
		t.Error("another backend: got a change for the record, want none")
	}
}

// TestDisappeared has the meaning of a record disappear, come back, and its id get another meaning.
func TestDisappeared(t *testing.T) {
	h := newHost(t, map[uint64]string{1: "vip=1"}, map[uint64]string{5: "m"})
	key, value := h.inTable(80, 1, 5)
	if h.change(key, value, nil) {
		t.Error("disappeared: got a change, want none: the entry keeps its id")
	}
	if _, again := h.inTable(80, 1, 5); !bytes.Equal(again, value) {
		t.Error("id without its meaning: got another number, want the last one")
	}
	ok, stale := h.ToKernel(bytes.Clone(key), bytes.Clone(value))
	if ok || stale {
		t.Errorf("write of a record without an id: got %t and stale %t, want neither", ok, stale)
	}
	if !h.change(key, value, map[uint64]string{5: "n"}) {
		t.Error("id with another meaning: got no change, want one")
	}
	if ok, stale = h.ToKernel(bytes.Clone(key), bytes.Clone(value)); ok || !stale {
		t.Errorf("write of a record whose id means something else: got %t and stale %t, want stale", ok, stale)
	}
	if !h.change(key, value, map[uint64]string{5: "n", 9: "m"}) {
		t.Error("meaning that is back: got no change, want one")
	}
	h.wantID(t, key, value, 1, 9)
}

// TestUnknownID has an entry with an id that the referenced map gets later.
func TestUnknownID(t *testing.T) {
	h := newHost(t, map[uint64]string{1: "vip=1"}, map[uint64]string{5: "m"})
	key, value := h.inTable(80, 1, 9)
	number := uint32(load(value[:4]))
	if name, ok := h.backends.Name(number); ok || number == 0 {
		t.Errorf("unknown id: got number %d with the name %q, want a number without a name", number, name)
	}
	h.wantID(t, key, value, 1, 9) // a write of the rest of the value keeps it
	if !h.change(key, value, map[uint64]string{5: "m", 9: "n"}) {
		t.Error("id that is known now: got no change, want one")
	}
	if _, again := h.inTable(80, 1, 9); bytes.Equal(again, value) {
		t.Error("id that is known now: got the same number, want that of its meaning")
	}
}

// TestNoID: 0 stands for no id, unless the referenced map has it.
func TestNoID(t *testing.T) {
	h := newHost(t, nil, map[uint64]string{5: "m"})
	key, value := h.inTable(80, 0, 0)
	if load(key[2:]) != 0 || load(value[:4]) != 0 {
		t.Errorf("no id: got %x and %x, want zeros", key, value)
	}
	h.wantID(t, key, value, 0, 0)
	h = newHost(t, map[uint64]string{0: "vip=0"}, map[uint64]string{0: "zero"})
	if ok, _ := h.ToKernel(bytes.Clone(key), bytes.Clone(value)); ok {
		t.Error("no id, and a meaning of 0: got an entry, want none")
	}
	key, value = h.inTable(80, 0, 0)
	h.wantID(t, key, value, 0, 0)
}

// TestEqualMeanings: of two ids with one meaning, the lowest is written.
func TestEqualMeanings(t *testing.T) {
	h := newHost(t, map[uint64]string{1: "vip=1"}, map[uint64]string{9: "m", 5: "m", 7: "m"})
	key, value := h.inTable(80, 1, 9)
	_, other := h.inTable(80, 1, 5)
	if !bytes.Equal(value, other) {
		t.Error("ids with one meaning: got two numbers, want one")
	}
	h.wantID(t, key, value, 1, 5)
	h.change(key, value, map[uint64]string{9: "m", 7: "m"})
	h.wantID(t, key, value, 1, 7)
}

// TestKeysKeepTheirIDs: a key whose meaning has disappeared keeps its id until that means something else.
func TestKeysKeepTheirIDs(t *testing.T) {
	h := newHost(t, map[uint64]string{1: "vip=1"}, map[uint64]string{5: "m"})
	key, value := h.inTable(80, 1, 5)
	h.services.Update(nil)
	h.Changes().Apply()
	h.wantID(t, key, value, 1, 5)
	h.services.Update(map[uint64]string{1: "vip=2"})
	c := h.Changes()
	if !c.Affects(key, nil) || !h.InKeys() {
		t.Error("id in a key with another meaning: got no change, want one")
	}
	c.Apply()
	if ok, stale := h.ToKernel(bytes.Clone(key), bytes.Clone(value)); ok || stale {
		t.Errorf("key without an id: got %t and stale %t, want neither: the map has no such key", ok, stale)
	}
}

// TestSums checks what digests and the state file have of an entry.
func TestSums(t *testing.T) {
	a := newHost(t, map[uint64]string{1: "vip=1"}, map[uint64]string{5: "m", 6: "n"})
	b := newHost(t, map[uint64]string{7: "vip=1", 8: "vip=2"}, map[uint64]string{1: "n", 2: "m"})
	keyA, valueA := a.inTable(80, 1, 5)
	keyB, valueB := b.inTable(80, 7, 2)
	if bytes.Equal(keyA, keyB) && bytes.Equal(valueA, valueB) {
		t.Fatal("numbers of two nodes: got equal ones, want different ones")
	}
	if a.Sum(keyA, valueA) != b.Sum(keyB, valueB) {
		t.Error("sum of equal meanings: got two sums, want one")
	}
	if !bytes.Equal(a.Append(nil, keyA, valueA), b.Append(nil, keyB, valueB)) || !bytes.Equal(a.Append(nil, keyA, nil), b.Append(nil, keyB, nil)) {
		t.Error("bytes of equal meanings: got different ones, want equal ones")
	}
	for name, e := range map[string]struct {
		service uint16
		backend uint32
	}{"backend": {7, 1}, "service": {8, 2}, "no backend": {7, 0}} {
		key, value := b.inTable(80, e.service, e.backend)
		if a.Sum(keyA, valueA) == b.Sum(key, value) || bytes.Equal(a.Append(nil, keyA, valueA), b.Append(nil, key, value)) {
			t.Errorf("another %s: got equal sums, want different ones", name)
		}
	}
}

// TestFullNames has more meanings than a field of one byte has numbers for.
func TestFullNames(t *testing.T) {
	n := NewNames(1)
	n.Update(map[uint64]string{1: "kept"})
	for i := range 253 {
		if _, ok := n.Index(fmt.Sprint("m", i)); !ok {
			t.Fatalf("meaning %d: got no number, want one", i)
		}
	}
	if k, ok := n.Index("more"); ok {
		t.Fatalf("meaning 255: got number %d, want none", k)
	}
	if !n.Crowded() {
		t.Error("all numbers in use: got not crowded, want crowded")
	}
	used, _ := n.Index("m7")
	var given uint32
	for range 2 {
		n.Release(func(mark func(uint32)) bool {
			mark(used)
			given, _ = n.Index("m8") // given out meanwhile
			return true
		})
	}
	if name, ok := n.Name(given); !ok || name != "m8" || n.Len() != 3 {
		t.Errorf("after Release: got %d meanings, and %q, want kept, m7 and m8", n.Len(), name)
	}
	if k, ok := n.Index("more"); !ok || k == used || k == given {
		t.Errorf("meaning after Release: got number %d and ok %t, want a free one", k, ok)
	}
	before := n.Len()
	for range 2 {
		n.Release(func(func(uint32)) bool { return false })
	}
	if n.Len() != before {
		t.Errorf("Release without all tables: got %d meanings, want %d", n.Len(), before)
	}
}

// TestRandomChanges changes two nodes' ids at random. A record that one node sends to the other always arrives with its meaning, and no
// entry of the kernel map means something else than its record.
func TestRandomChanges(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		content := func() map[uint64]string {
			m := make(map[uint64]string)
			for id := range uint64(6) {
				if r.IntN(3) > 0 {
					m[id] = string(rune('a' + r.IntN(5)))
				}
			}
			return m
		}
		current := content()
		h := newHost(t, map[uint64]string{1: "vip=1"}, current)
		// records are the values of the table by meaning, and kernel their ids in the map.
		records, kernel := make(map[string][]byte), make(map[string]uint64)
		write := func(text string) {
			key, _ := h.inTable(80, 1, 0)
			value := bytes.Clone(records[text])
			ok, stale := h.ToKernel(key, value)
			switch {
			case ok:
				kernel[text] = load(value[:4])
			case stale:
				delete(kernel, text)
			}
		}
		for range 40 {
			text := string(rune('a' + r.IntN(5)))
			k, ok := h.backends.Index(text)
			if !ok {
				t.Fatalf("seed %d: no number for %s", seed, text)
			}
			value := make([]byte, 8)
			store(value[:4], uint64(k))
			records[text] = value
			write(text)
			next := content()
			h.backends.Update(next)
			c := h.Changes()
			var affected []string
			for text, value := range records {
				key, _ := h.inTable(80, 1, 0)
				if c.Affects(key, value) {
					affected = append(affected, text)
				}
			}
			c.Apply()
			slices.Sort(affected)
			for _, text := range affected {
				write(text)
			}
			for text, id := range kernel {
				if now := next[id]; now != "" && now != text {
					t.Fatalf("seed %d: the entry of %s has id %d, which means %s", seed, text, id, now)
				}
			}
			for id, text := range next {
				if id == 0 {
					continue
				}
				_, value := h.inTable(80, 1, uint32(id))
				if name, _ := h.backends.Name(uint32(load(value[:4]))); name != text {
					t.Fatalf("seed %d: id %d is %q in the table, want %q", seed, id, name, text)
				}
			}
		}
	}
}

// TestTranslationErrors checks references that cannot be translated.
func TestTranslationErrors(t *testing.T) {
	for name, c := range map[string]struct {
		names map[string]*Names
		want  string
	}{
		"no names":     {map[string]*Names{services: NewNames(2)}, "backends[address]: its map is not watched"},
		"another size": {map[string]*Names{services: NewNames(4), backends: NewNames(4)}, "the field has 2 bytes"},
	} {
		if _, err := NewTranslation(entries(), c.names); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", name, err, c.want)
		}
	}
	if (*Translation)(nil).Reference(services) != nil {
		t.Error("reference of no translation: got names, want none")
	}
}
