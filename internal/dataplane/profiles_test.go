package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/reference"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/suggest"

	"github.com/cilium/ebpf"
)

// node is a node with its own clocks and interfaces.
type node struct {
	times schema.Times
	// first is the index of eth0, the others follow.
	first uint32
	host  suggest.Host
	// names are the meanings of the ids of each reference, and firstID the first of manyIDs ids.
	names   map[string]*reference.Names
	firstID uint64
}

const manyIDs = 100

// meaning returns the meaning of an id of the node, or an empty text for 0.
func (n *node) meaning(id uint64) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprint("meaning=", id-n.firstID)
}

// Reference returns the meanings of a reference.
func (n *node) Reference(text string) schema.Links {
	if n.names[text] == nil {
		return nil
	}
	return n.names[text]
}

// translation returns the translation for entries of a schema.
func (n *node) translation(t *testing.T, s *schema.Schema) *reference.Translation {
	t.Helper()
	for _, text := range s.ReferencesOf() {
		if n.names[text] != nil {
			continue
		}
		size := 4
		if strings.Contains(text, "reverse_nat") {
			size = 2
		}
		content := make(map[uint64]string)
		for i := range uint64(manyIDs) {
			content[n.firstID+i] = n.meaning(n.firstID + i)
		}
		n.names[text] = reference.NewNames(size)
		n.names[text].Update(content)
	}
	tr, err := reference.NewTranslation(s, n.names)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

var interfaces = []string{"eth0", "eth1", "eth2"}

func (n *node) Name(index uint32) (string, bool) {
	if index < n.first || index >= n.first+uint32(len(interfaces)) {
		return "", false
	}
	return interfaces[index-n.first], true
}

func (n *node) Index(name string) (uint32, bool) {
	i := slices.Index(interfaces, name)
	return n.first + uint32(i), i >= 0
}

const tick = 4 * time.Millisecond

// now is the wall clock of both nodes.
var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC).UnixNano()

// newNode returns a node that has been up for some time.
func newNode(up time.Duration, first uint32) *node {
	jiffies := uint64(1)<<32 - uint64(5*time.Minute/tick) + uint64(up/tick)
	n := &node{
		times: schema.Times{Ktime: now - int64(up), Boottime: now - int64(up) - 7e9, Jiffies: jiffies, JiffiesAt: now, Tick: int64(tick)}, first: first,
		names: make(map[string]*reference.Names), firstID: 1000 * uint64(first),
		host: suggest.Host{Ktime: int64(up), Boottime: int64(up) + 7e9, Jiffies: jiffies, Tick: tick, Interfaces: map[uint64]bool{1: true}},
	}
	for i := range interfaces {
		n.host.Interfaces[uint64(first)+uint64(i)] = true
	}
	return n
}

// profileFields returns the settings of a profile's fields.
func profileFields(t *testing.T, profile string) []schema.Setting {
	t.Helper()
	c, err := config.ReadWithProfile("", profile)
	if err != nil {
		t.Fatal(err)
	}
	list, err := daemon.ParseFields(c.Fields)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// schemaOf returns the schema of a map with field settings.
func schemaOf(t *testing.T, m *Map, fields []schema.Setting) *schema.Schema {
	t.Helper()
	s := schema.FromSizes(m.Name, m.KeySize, m.ValueSize)
	if m.Key != nil {
		var err error
		if s, err = schema.FromTypes(m.Name, m.Key, m.Value); err != nil {
			t.Fatal(err)
		}
	}
	if s.Key.Size != m.KeySize || s.Value.Size != m.ValueSize {
		t.Fatalf("map %s: got entries of %d+%d bytes, want %d+%d", m.Name, s.Key.Size, s.Value.Size, m.KeySize, m.ValueSize)
	}
	if m.Type == ebpf.PerCPUHash {
		s = s.PerCPU(2)
	}
	if err := s.Apply(fields); err != nil {
		t.Fatal(err)
	}
	return s
}

// entries calls do for n random entries of a node, which are valid for the schema.
func entries(t *testing.T, m *Map, s *schema.Schema, n *node, count int, do func(key, value []byte)) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, uint64(len(m.Name))))
	variant := s.VariantOf()
	for i := range count {
		key, value := make([]byte, s.Key.Size), make([]byte, s.Value.Size)
		for _, half := range [][]byte{key, value} {
			for j := range half {
				half[j] = byte(random.Uint32())
			}
		}
		if m.Set != nil {
			m.Set(key, value, i)
		}
		one := s
		if variant != nil {
			one = s.Variant(variant(key, value))
		}
		n.fill(random, one.Key, key, true)
		n.fill(random, one.Value, value, false)
		do(key, value)
	}
}

// fill sets the times and interfaces of a message to those of the node, and its padding to zero.
func (n *node) fill(random *rand.Rand, m *schema.Message, b []byte, key bool) {
	used := make([]bool, len(b))
	for i := range m.Fields {
		f := &m.Fields[i]
		for j := range f.Bytes() {
			used[f.Offset+j] = true
		}
		for e := range max(f.Count, 1) {
			at := b[f.Offset+e*f.Size:][:f.Size]
			var v uint64
			switch f.Kind {
			case schema.KindMessage:
				n.fill(random, f.Message, at, key)
				continue
			case schema.KindNone:
				clear(at)
				continue
			case schema.KindTime:
				v = uint64(n.host.Ktime) - uint64(random.Int64N(int64(10*time.Minute)))
				if f.Roles&schema.RoleSeconds != 0 {
					v /= uint64(time.Second)
				}
			case schema.KindIfname:
				v = uint64(n.first) + uint64(random.IntN(len(interfaces)))
			case schema.KindReference:
				if v = n.firstID + random.Uint64N(manyIDs); random.IntN(4) == 0 {
					v = 0
				}
			default:
				continue
			}
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], v)
			copy(at, word[:])
		}
	}
	for i, u := range used {
		if !u {
			b[i] = 0
		}
	}
}

// TestProfilesBetweenNodes: each field of each map of a profile arrives with its meaning, in both directions, between nodes whose clocks
// and interfaces differ.
func TestProfilesBetweenNodes(t *testing.T) {
	here, there := newNode(90*time.Minute, 4), newNode(33*time.Hour, 11)
	for _, m := range Maps() {
		t.Run(m.Profile+" "+m.Name, func(t *testing.T) {
			s := schemaOf(t, &m, profileFields(t, m.Profile))
			there := &crossing{t: t, s: s, from: here, to: there}
			there.compile()
			count := 0
			entries(t, &m, s, here, 10000, func(key, value []byte) {
				if there.cross(key, value); !t.Failed() {
					count++
				}
			})
			if count != 10000 {
				t.Errorf("entries that arrive right: got %d, want 10000", count)
			}
		})
	}
}

// crossing sends entries from one node to another, and back.
type crossing struct {
	t        *testing.T
	s        *schema.Schema
	from, to *node
	enc      [2]func(dst, key, value []byte) // to the other node, and back
}

func (c *crossing) compile() {
	for i, ends := range [2][2]*node{{c.from, c.to}, {c.to, c.from}} {
		from, to := ends[0].translation(c.t, c.s), ends[1].translation(c.t, c.s)
		enc, err := schema.NewEncoder(c.s, ends[0])
		if err != nil {
			c.t.Fatal(err)
		}
		dec, err := schema.NewDecoder(c.s, c.s, ends[1])
		if err != nil {
			c.t.Fatal(err)
		}
		c.enc[i] = func(dst, key, value []byte) {
			key, value = bytes.Clone(key), bytes.Clone(value)
			from.FromKernel(key, value)
			wireKey, err := enc.AppendKey(nil, key)
			if err != nil {
				c.t.Fatal(err)
			}
			wire, err := enc.AppendNamedValue(nil, key, value, &ends[0].times)
			if err != nil {
				c.t.Fatal(err)
			}
			if err := dec.Key(dst[:len(key)], wireKey); err != nil {
				c.t.Fatal(err)
			}
			if err := dec.Value(dst[len(key):], dst[:len(key)], wire, &ends[1].times); err != nil {
				c.t.Fatal(err)
			}
			if ok, _ := to.ToKernel(dst[:len(key)], dst[len(key):]); !ok {
				c.t.Fatalf("ids of entry %x %x: got a meaning without an id, want all", key, value)
			}
		}
	}
}

// cross sends an entry, compares its fields with those at the other node, and its bytes with those that return.
func (c *crossing) cross(key, value []byte) {
	n := len(key)
	other, back := make([]byte, n+len(value)), make([]byte, n+len(value))
	c.enc[0](other, key, value)
	one := c.s
	if of := c.s.VariantOf(); of != nil {
		one = c.s.Variant(of(key, value))
	}
	c.compare("key.", one.Key, key, other[:n])
	c.compare("", one.Value, value, other[n:])
	c.enc[1](back, other[:n], other[n:])
	mask := one.Carried()
	for i := range value {
		if back[n+i]&mask[i] != value[i]&mask[i] {
			c.t.Fatalf("byte %d of the value that returns: got %x, want %x", i, back[n+i], value[i])
		}
	}
	if string(back[:n]) != string(key) {
		c.t.Fatalf("key that returns: got %x, want %x", back[:n], key)
	}
}

// compare compares the meaning of each field.
func (c *crossing) compare(prefix string, m *schema.Message, a, b []byte) {
	for i := range m.Fields {
		f := &m.Fields[i]
		for e := range max(f.Count, 1) {
			x, y := a[f.Offset+e*f.Size:][:f.Size], b[f.Offset+e*f.Size:][:f.Size]
			if f.Kind == schema.KindMessage {
				c.compare(prefix+f.Name+".", f.Message, x, y)
				continue
			}
			same := string(x) == string(y)
			switch {
			case !f.Sent() && f.Default != nil:
				same = string(y) == string(f.Default)
			case !f.Sent() && f.BitSize > 0:
				same = f.NumberAt(b, e) == 0
			case !f.Sent():
				same = !slices.ContainsFunc(y, func(b byte) bool { return b != 0 })
			case f.BitSize > 0:
				same = f.NumberAt(a, e) == f.NumberAt(b, e)
			case f.Kind == schema.KindTime:
				there, _ := schema.UnixOf(f, f.NumberAt(b, e), &c.to.times)
				here, _ := schema.UnixOf(f, f.NumberAt(a, e), &c.from.times)
				same = here == there && string(x) != string(y)
			case f.Kind == schema.KindReference:
				here, there := f.NumberAt(a, e), f.NumberAt(b, e)
				same = c.from.meaning(here) == c.to.meaning(there) && (here == 0 || here != there)
			case f.Kind == schema.KindIfname:
				here, _ := c.from.Name(uint32(f.NumberAt(a, e)))
				there, _ := c.to.Name(uint32(f.NumberAt(b, e)))
				same = here == there && string(x) != string(y)
			}
			if !same {
				c.t.Fatalf("field %s%s: got %x, want the meaning of %x", prefix, f.Name, y, x)
			}
		}
	}
}

// TestEachRoleIsSuggested: without one of its time or interface roles, a profile's map has a suggestion for that field, and with all of
// them it has none.
func TestEachRoleIsSuggested(t *testing.T) {
	removed := 0
	for _, m := range Maps() {
		fields := profileFields(t, m.Profile)
		n := newNode(33*time.Hour, 11)
		full := schemaOf(t, &m, fields)
		suggested := func(s *schema.Schema) (list []string) {
			sample := suggest.NewSample(s, &n.host)
			entries(t, &m, full, n, 2000, sample.Add)
			for _, x := range sample.Suggestions() {
				if !x.Display {
					list = append(list, x.Field+"="+x.Roles)
				}
			}
			return list
		}
		if got := suggested(full); len(got) > 0 {
			t.Errorf("map %s of profile %s: got suggestions %q, want none", m.Name, m.Profile, got)
		}
		for i, set := range fields {
			if set.Map != m.Name || set.Roles&(schema.RoleTime|schema.RoleIfindex) == 0 {
				continue
			}
			removed++
			less := schemaOf(t, &m, slices.Delete(slices.Clone(fields), i, i+1))
			want := strings.Join((set.Roles & (schema.RoleTime | schema.RoleIfindex)).Names(), ",")
			if got := suggested(less); len(got) != 1 || !strings.HasPrefix(got[0], set.Field+"="+want) {
				t.Errorf("map %s without the role of %s: got suggestions %q, want one with %s", m.Name, set.Field, got, want)
			}
		}
	}
	if removed < 40 {
		t.Errorf("roles that were removed: got %d, want at least 40", removed)
	}
}
