package counters_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

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
	if diff := cmp.Diff(want, show(s.Collect())); diff != "" {
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
	s.Changed(key(t, 1, 1), nil, value(30, 1))           // the entry was deleted or drained meanwhile
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
		for _, row := range set.Collect() {
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

// TestSeriesAreThoseThatIncreaseMost has 100,000 services, of which 10 increase most.
func TestSeriesAreThoseThatIncreaseMost(t *testing.T) {
	const top, many = 10, 100_000
	s := newSet(t, spec(top))
	r := rand.New(rand.NewPCG(1, 2))
	change := func(service int, n uint64) { s.Changed(key(t, service, 1), nil, value(n, 1)) }
	var rows []counters.Row
	for round := range 3 {
		for i := range many {
			change(1000+r.IntN(many), 1+r.Uint64N(10))
			if i%100 == 0 {
				change(1+i/100%top, 5000)
			}
		}
		if rows = s.Collect(); len(rows) != top+1 {
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

// model has the sums that a Set of one node must have.
type model struct {
	total   []uint64
	ended   []uint64
	present map[string][]uint64
}

// collect compares the rows of a Set with the model.
func (m *model) collect(t *testing.T, s *counters.Set, top int) {
	t.Helper()
	rows := s.Collect()
	if len(rows) > top+1 {
		t.Fatalf("rows: got %d, want at most %d", len(rows), top+1)
	}
	now, sum := make(map[string][]uint64), make([]uint64, len(m.total))
	for _, r := range rows {
		now[strings.Join(r.Labels, ":")] = r.Totals
	}
	for name, was := range m.present {
		is, ok := now[name]
		for i := range was {
			if !ok {
				m.ended[i] += was[i]
			} else if is[i] < was[i] {
				t.Fatalf("series %s fell: got %v, want at least %v", name, is, was)
			}
		}
	}
	for _, totals := range now {
		for i, n := range totals {
			sum[i] += n
		}
	}
	for i, want := range m.total {
		if sum[i]+m.ended[i] != want {
			t.Fatalf("sum of all series: got %d and %d of removed ones, want %d", sum[i], m.ended[i], want)
		}
	}
	m.present = now
}

// TestSumsAreExact makes random changes with random numbers of series, restarts and changes of the types.
func TestSumsAreExact(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		top := 1 + r.IntN(8)
		many := 1 + r.IntN(2*top) // more than top, or all have a series
		s := newSet(t, spec(top))
		m := &model{total: make([]uint64, 2), ended: make([]uint64, 2)}
		entries := make(map[int][2]uint64)
		for range 500 {
			switch r.IntN(20) {
			case 0:
				m.collect(t, s, top)
			case 1:
				if err := s.SetTypes(services(), nil); err != nil {
					t.Fatal(err)
				}
			case 2:
				m.collect(t, s, top)
				s = restart(t, s, top, entries)
				m.collect(t, s, top)
			default:
				change(t, r, s, m, entries, many)
			}
		}
	}
}

// restart ends a Set and continues with another one, for the same map.
func restart(t *testing.T, s *counters.Set, top int, entries map[int][2]uint64) *counters.Set {
	t.Helper()
	each := func(yield func(key, value []byte)) {
		for k, v := range entries {
			yield(key(t, k, 1), value(v[0], uint32(v[1])))
		}
	}
	state := s.State(each)
	s = newSet(t, spec(top))
	s.Restore(state)
	each(s.Loaded)
	s.EndLoad(true)
	return s
}

// change changes, resets or deletes an entry.
func change(t *testing.T, r *rand.Rand, s *counters.Set, m *model, entries map[int][2]uint64, services int) {
	t.Helper()
	k := r.IntN(services)
	was, known := entries[k]
	if known && r.IntN(4) == 0 {
		delete(entries, k)
		return
	}
	now := [2]uint64{was[0] + r.Uint64N(100), was[1] + r.Uint64N(3)}
	if r.IntN(5) == 0 {
		now = [2]uint64{r.Uint64N(50), r.Uint64N(2)}
	}
	var from []byte
	if known {
		from = value(was[0], uint32(was[1]))
	}
	for i := range now {
		m.total[i] += now[i]
		if now[i] >= was[i] {
			m.total[i] -= was[i]
		}
	}
	entries[k] = now
	s.Changed(key(t, k, 1), from, value(now[0], uint32(now[1])))
}

func TestAbsenceIsCounted(t *testing.T) {
	s := newSet(t, spec(1))
	s.Changed(key(t, 1, 1), nil, value(100, 1))
	s.Changed(key(t, 2, 1), nil, value(30, 1))
	wantRows(t, s, "10.0.0.1:443 [100 1]", "other:other [30 1]")
	ended := s.State(func(yield func(key, value []byte)) {
		yield(key(t, 1, 1), value(100, 1))
		yield(key(t, 2, 1), value(30, 1))
	})
	killed := s.State(nil)
	for name, of := range map[string]struct {
		state counters.State
		same  bool
		want  []string
	}{
		"ended":       {ended, true, []string{"10.0.0.1:443 [150 1]", "other:other [31 3]"}},
		"another map": {ended, false, []string{"10.0.0.1:443 [100 1]", "other:other [30 1]"}},
		"killed":      {killed, true, []string{"10.0.0.1:443 [100 1]", "other:other [30 1]"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSet(t, spec(1))
			s.Restore(of.state)
			s.Loaded(key(t, 1, 1), value(150, 1))
			s.Loaded(key(t, 3, 1), value(31, 3)) // the entry of service 2 was deleted
			s.EndLoad(of.same)
			wantRows(t, s, of.want...)
			s.Changed(key(t, 1, 1), value(150, 1), value(151, 1))
			s.Collect()
		})
	}
}

// TestStateOfAnotherSpecification: the fields, labels or the maximum of series changed with a restart.
func TestStateOfAnotherSpecification(t *testing.T) {
	s := newSet(t, spec(3))
	for i := range 3 {
		s.Changed(key(t, i, 1), nil, value(uint64(10*i+1), 1))
	}
	state := s.State(nil)
	one := newSet(t, spec(1))
	one.Restore(state)
	if rows := one.Collect(); len(rows) != 2 {
		t.Errorf("rows with top 1: got %v, want one series and other", show(rows))
	}
	fields := newSet(t, counters.Spec{Fields: []string{"packets", "bytes"}, Labels: spec(1).Labels, Top: 3})
	fields.Restore(state)
	wantRows(t, fields, "other:other [0 0]")
	labels := newSet(t, counters.Spec{Fields: spec(1).Fields, Labels: spec(1).Labels[:1], Top: 3})
	labels.Restore(state)
	wantRows(t, labels, "other [0 0]")
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
