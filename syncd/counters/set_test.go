package counters_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/counters"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"

	"github.com/google/go-cmp/cmp"
)

// services returns the types of the tests: the traffic of processes to services.
func services() *schema.Schema {
	return &schema.Schema{
		Map: "services",
		Key: schematest.Members("key",
			schema.Field{Name: "daddr", Size: 4, Kind: schema.KindUint, Roles: schema.RoleIPv4, Type: "__be32"},
			schema.Field{Name: "dport", Size: 2, Kind: schema.KindUint, Roles: schema.RoleBE, Type: "__be16"},
			schema.Field{Name: "flags", Size: 2, BitOffset: 2, BitSize: 4, Kind: schema.KindUint, Type: "__u16"},
			schema.Field{Name: "comm", Size: 16, Kind: schema.KindBytes, Type: "char[16]"},
			schema.Field{Name: "pid", Size: 4, Kind: schema.KindUint, Type: "__u32"},
		),
		Value: schematest.Members("value",
			schema.Field{Name: "bytes", Size: 8, Kind: schema.KindUint, Type: "__u64"},
			schema.Field{Name: "packets", Size: 4, Kind: schema.KindUint, Type: "__u32"},
			schema.Field{Name: "last", Size: 8, Kind: schema.KindTime, Roles: schema.RoleKtime, Type: "__u64"},
		),
	}
}

var clock = time.Unix(1_000_000, 0)

func spec(top int) counters.Spec {
	return counters.Spec{
		Labels: []counters.Label{{Name: "destination", Field: "daddr"}, {Name: "port", Field: "dport"}},
		Fields: []string{"bytes", "packets"}, Top: top,
	}
}

func newSet(t testing.TB, s counters.Spec) *counters.Set {
	t.Helper()
	set := counters.New(s)
	if err := set.SetTypes(services(), nil); err != nil {
		t.Fatal(err)
	}
	return set
}

func key(t testing.TB, service, pid int) []byte {
	t.Helper()
	k := make([]byte, services().Key.Size)
	binary.BigEndian.PutUint32(k, 0x0a000000+uint32(service))
	binary.BigEndian.PutUint16(k[4:], 443)
	k[6] = 5 << 2
	copy(k[7:], "curl")
	binary.NativeEndian.PutUint32(k[23:], uint32(pid))
	return k
}

func value(bytes uint64, packets uint32) []byte {
	v := make([]byte, services().Value.Size)
	binary.NativeEndian.PutUint64(v, bytes)
	binary.NativeEndian.PutUint32(v[8:], packets)
	return v
}

func show(rows []counters.Row) []string {
	var lines []string
	for _, r := range rows {
		lines = append(lines, fmt.Sprint(strings.Join(r.Labels, ":"), " ", r.Totals))
	}
	return lines
}

func wantRows(t *testing.T, s *counters.Set, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, show(s.Collect(clock))); diff != "" {
		t.Errorf("rows differ (- want, + got):\n%s", diff)
	}
}

func TestCountersAreSumsOfIncreases(t *testing.T) {
	s := newSet(t, spec(10))
	s.Changed(key(t, 1, 1), nil, value(100, 1))
	s.Changed(key(t, 1, 1), value(100, 1), value(150, 2))
	s.Changed(key(t, 1, 2), nil, value(7, 1)) // another process, the same service
	wantRows(t, s, "10.0.0.1:443 [157 3]", "other:other [0 0]")
	s.Changed(key(t, 1, 1), value(150, 2), value(20, 3)) // bytes were reset, packets were not
	s.Changed(key(t, 1, 1)[1:], nil, value(999, 9))      // of other types
	s.Changed(key(t, 1, 1), value(1, 1)[1:], value(999, 9))
	s.Changed(key(t, 1, 1), nil, value(30, 1)) // the entry was deleted or drained meanwhile
	s.Changed(key(t, 2, 1), nil, value(0, 0))
	wantRows(t, s, "10.0.0.1:443 [207 5]", "other:other [0 0]")
	s.Changed(key(t, 2, 1), value(0, 0), value(1, 0))
	wantRows(t, s, "10.0.0.1:443 [207 5]", "10.0.0.2:443 [1 0]", "other:other [0 0]")
}

func TestLabelsAreTexts(t *testing.T) {
	s := newSet(t, counters.Spec{
		Labels: []counters.Label{{"comm", "comm"}, {"flags", "key.flags"}, {"pid", "pid"}},
		Fields: []string{"value.packets"}, Top: 3,
	})
	s.Changed(key(t, 1, 70), nil, value(1, 9))
	other := key(t, 1, 71)
	other[6] = 5<<2 | 0xc3 // bits outside the field
	s.Changed(other, nil, value(1, 4))
	wantRows(t, s, "curl:5:70 [9]", "curl:5:71 [4]", "other:other:other [0]")
}

func TestCountersWithoutLabels(t *testing.T) {
	s := newSet(t, counters.Spec{Fields: []string{"bytes"}, Top: 10})
	s.Changed(key(t, 1, 1), nil, value(5, 1))
	s.Changed(key(t, 2, 1), nil, value(6, 1))
	wantRows(t, s, " [11]")
}

func TestFieldsThatAreNotUsable(t *testing.T) {
	for name, s := range map[string]counters.Spec{
		"label state: unknown field":                  {Labels: []counters.Label{{"state", "state"}}, Fields: []string{"bytes"}},
		"bytes is a field of the value, and labels":   {Labels: []counters.Label{{"bytes", "bytes"}}, Fields: []string{"bytes"}},
		"pid is a field of the key, and counters are": {Fields: []string{"pid"}},
		"last (__u64) is not an unsigned integer":     {Fields: []string{"bytes", "last"}},
		"counter: unknown field":                      {Fields: []string{"octets"}},
	} {
		set := counters.New(s)
		err := set.SetTypes(services(), nil)
		if !errors.Is(err, counters.ErrField) || !strings.Contains(err.Error(), name) {
			t.Errorf("SetTypes: got error %v, want ErrField with %q", err, name)
		}
		set.Changed(key(t, 1, 1), nil, value(1, 1)) // counts nothing
		for _, row := range set.Collect(clock) {
			if row.Totals[0] != 0 {
				t.Errorf("row after %q: got %v, want 0", name, row)
			}
		}
	}
}

func TestValuesOfAllCPUsAreAdded(t *testing.T) {
	types := services().PerCPU(3)
	s := counters.New(spec(10))
	if err := s.SetTypes(types, nil); err != nil {
		t.Fatal(err)
	}
	stride := types.Value.Size / 3
	all := make([]byte, types.Value.Size)
	for cpu := range 3 {
		copy(all[cpu*stride:], value(uint64(10*cpu+1), 1))
	}
	s.Changed(key(t, 1, 1), nil, all)
	wantRows(t, s, "10.0.0.1:443 [33 3]", "other:other [0 0]")
}

// TestFieldsThatFall: a field that falls below half was reset.
func TestFieldsThatFall(t *testing.T) {
	for name, tt := range map[string]struct {
		from, to  uint64 // packets, of 32 bits
		noResets  bool
		want      uint64
		decreases bool
	}{
		"rises":                {10, 15, false, 5, false},
		"stays":                {10, 10, false, 0, false},
		"falls a little":       {10, 9, false, 0, true},
		"falls to half":        {10, 5, false, 0, true},
		"was reset":            {10, 4, false, 4, true},
		"no resets":            {10, 4, true, 0, true},
		"wraps":                {1<<32 - 6, 10, false, 16, false},
		"wraps, no resets":     {1<<32 - 6, 10, true, 16, false},
		"rises over the range": {10, 1<<32 - 6, false, 1<<32 - 16, true}, // the other order wraps
		"falls, from above":    {1<<32 - 6, 1 << 31, false, 0, true},
	} {
		only := spec(10)
		only.Fields, only.NoResets = []string{"packets"}, tt.noResets
		s := newSet(t, only)
		from, to := value(0, uint32(tt.from)), value(0, uint32(tt.to))
		s.Changed(key(t, 1, 1), from, to)
		var got uint64
		for _, row := range s.Collect(clock) {
			got += row.Totals[0]
		}
		if got != tt.want {
			t.Errorf("%s: from %d to %d: got %d, want %d", name, tt.from, tt.to, got, tt.want)
		}
		if got := s.Decreases(from, to); got != tt.decreases {
			t.Errorf("%s: Decreases from %d to %d: got %v, want %v", name, tt.from, tt.to, got, tt.decreases)
		}
	}
}

// TestDecreaseOfOneField: one of several fields, or of one CPU, is sufficient. Values of other types do not decrease.
func TestDecreaseOfOneField(t *testing.T) {
	s := counters.New(spec(10))
	if s.Decreases(value(2, 2), value(1, 1)) {
		t.Error("Decreases before SetTypes: got true, want false")
	}
	if err := s.SetTypes(services(), nil); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		from, to []byte
		want     bool
	}{
		{value(2, 2), value(3, 2), false},
		{value(2, 2), value(1, 3), true},
		{value(2, 2), value(3, 1), true},
		{value(2, 2)[1:], value(1, 1)[1:], false},
	} {
		if got := s.Decreases(tt.from, tt.to); got != tt.want {
			t.Errorf("Decreases from %x to %x: got %v, want %v", tt.from, tt.to, got, tt.want)
		}
	}
}

// TestOneCPUWraps: the counters of the CPUs wrap at different times.
func TestOneCPUWraps(t *testing.T) {
	types := services().PerCPU(3)
	only := spec(10)
	only.Fields = []string{"packets"}
	s := counters.New(only)
	if err := s.SetTypes(types, nil); err != nil {
		t.Fatal(err)
	}
	entry := func(packets ...uint32) []byte {
		all := make([]byte, types.Value.Size)
		for cpu, n := range packets {
			copy(all[cpu*types.Value.Size/3:], value(0, n))
		}
		return all
	}
	s.Changed(key(t, 1, 1), entry(4_000_000_000, 4_000_000_000, 1<<32-6), entry(4_000_000_001, 4_000_000_000, 10))
	wantRows(t, s, "10.0.0.1:443 [17]", "other:other [0]")
}

// TestSeriesAreThoseThatIncreaseMost has 100,000 services, of which 10 increase most.
func TestSeriesAreThoseThatIncreaseMost(t *testing.T) {
	const top, many = 10, 100_000
	s := newSet(t, spec(top))
	r := rand.New(rand.NewPCG(1, 2))
	change := func(service int, n uint64) { s.Changed(key(t, service, 1), nil, value(n, 1)) }
	var rows []counters.Row
	for round := range 8 {
		for i := range many {
			change(1000+r.IntN(many), 1+r.Uint64N(10))
			if i%100 == 0 {
				change(1+i/100%top, 5000)
			}
		}
		if rows = s.Collect(clock.Add(time.Duration(round) * counters.Linger)); len(rows) != top+1 {
			t.Fatalf("rows of round %d: got %d, want %d", round, len(rows), top+1)
		}
	}
	for _, row := range rows[:top] {
		var a, b, c, d int
		if n, _ := fmt.Sscanf(row.Labels[0], "%d.%d.%d.%d", &a, &b, &c, &d); n != 4 || c != 0 || d < 1 || d > top {
			t.Errorf("series: got %v, want one of 10.0.0.1 to 10.0.0.%d", row, top)
		}
	}
}

// TestContentsWithoutASeries: their increase replaces none, if they cannot have a series or have one already.
func TestContentsWithoutASeries(t *testing.T) {
	only := spec(2)
	only.Labels = []counters.Label{{Name: "comm", Field: "comm"}}
	s := newSet(t, only)
	named := func(comm string) []byte {
		k := key(t, 1, 1)
		copy(k[7:23], make([]byte, 16))
		copy(k[7:], comm)
		return k
	}
	s.Changed(named("01"), nil, value(10, 1))
	s.Changed(named("b"), nil, value(10, 1))
	for i := range 4 {
		s.Changed(named("other"), nil, value(1000, 1))
		s.Changed(named("\x01"), nil, value(1000, 1)) // has the text 01
		s.Collect(clock.Add(time.Duration(i) * 2 * counters.Linger))
	}
	wantRows(t, s, "01 [3010 4]", "b [10 1]", "other [5000 5]")
}

func BenchmarkChanged(b *testing.B) {
	for _, services := range []int{50, 1_000_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			s := newSet(b, spec(100))
			keys := make([][]byte, services)
			for i := range keys {
				keys[i] = key(b, i, 1)
			}
			from, to := value(10, 1), value(30, 2)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s.Changed(keys[i], from, to)
				if i++; i == services {
					i = 0
				}
			}
		})
	}
}
