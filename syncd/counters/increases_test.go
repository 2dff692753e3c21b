package counters_test

import (
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/counters"

	"github.com/google/go-cmp/cmp"
)

// server is a Prometheus server: it adds the increases of each series between its collections. A series that it has not
// collected before begins with its first content, and one that fell began at 0.
type server struct {
	at    time.Time // of the last collection
	last  map[string][]uint64
	total []uint64
}

func (v *server) collect(t *testing.T, rows []counters.Row, top int) {
	t.Helper()
	if len(rows) > top+1 {
		t.Fatalf("rows: got %d, want at most %d", len(rows), top+1)
	}
	now := make(map[string][]uint64)
	for _, r := range rows {
		name := strings.Join(r.Labels, ":")
		if now[name] != nil {
			t.Fatalf("rows: got series %s twice, want each once", name)
		}
		now[name] = r.Totals
		if v.last == nil {
			continue
		}
		for i, n := range r.Totals {
			was := uint64(0)
			if last := v.last[name]; last != nil {
				was = last[i]
			} else {
				was = n // the server has no increase before its first collection of a series
			}
			if n < was { // the series was removed and is exported again
				was = 0
			}
			v.total[i] += n - was
		}
	}
	v.last = now
}

// TestIncreasesAreExact changes entries of more services than there are series. Two servers collect at different times,
// with restarts of syncd and changes of the types between.
func TestIncreasesAreExact(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		top := 1 + r.IntN(8)
		many := top + 1 + r.IntN(3*top)
		s := newSet(t, spec(top))
		for k := range top { // all series exist before the servers begin
			s.Changed(key(t, k, 1), nil, value(1, 1))
		}
		want, now := make([]uint64, 2), clock
		servers := [2]server{{total: make([]uint64, 2)}, {total: make([]uint64, 2)}}
		for i := range servers {
			servers[i].collect(t, s.Collect(now), top)
		}
		entries := make(map[int][2]uint64)
		for range 2000 {
			now = now.Add(time.Duration(r.IntN(20)) * time.Second)
			switch n := r.IntN(40); {
			case n < 3:
				servers[n%2].collect(t, s.Collect(now), top)
			case n == 3 && r.IntN(10) == 0:
				if err := s.SetTypes(services(), nil); err != nil {
					t.Fatal(err)
				}
			case n == 4 && r.IntN(10) == 0:
				for i := range servers {
					servers[i].collect(t, s.Collect(now), top)
				}
				s = restart(t, s, top)
			default:
				change(t, r, s, want, entries, many)
			}
			for i := range servers {
				if r.IntN(8) == 0 || now.Sub(servers[i].at) > 2*time.Minute {
					servers[i].at = now
					servers[i].collect(t, s.Collect(now), top)
				}
			}
		}
		for i := range servers {
			servers[i].collect(t, s.Collect(now), top)
			if diff := cmp.Diff(want, servers[i].total); diff != "" {
				t.Fatalf("seed %d, server %d: increases differ (- want, + got):\n%s", seed, i, diff)
			}
		}
	}
}

// TestMillionKeysHaveFewSeries changes each of a million services several times. There are at most Spec.Top series and Other, and
// a server that collects every minute has the sum of all increases.
func TestMillionKeysHaveFewSeries(t *testing.T) {
	const top, many, rounds, collections = 100, 1_000_000, 3, 5
	s, v, now := newSet(t, spec(top)), server{total: make([]uint64, 2)}, clock
	k, from, want := key(t, 0, 1), value(1, 1), make([]uint64, 2)
	to := [][]byte{value(2, 2), value(50, 3), value(7000, 5)} // the services do not increase alike
	increases := [][]uint64{{1, 1}, {49, 2}, {6999, 4}}
	for i := range top { // all series exist before the server begins
		s.Changed(key(t, i, 1), nil, value(1, 1))
	}
	v.collect(t, s.Collect(now), top)
	for i := range rounds * many {
		binary.BigEndian.PutUint32(k, 0x0a000000+uint32(i%many))
		s.Changed(k, from, to[i%len(to)])
		for f, n := range increases[i%len(to)] {
			want[f] += n
		}
		if (i+1)%(many/collections) == 0 {
			now = now.Add(time.Minute)
			v.collect(t, s.Collect(now), top)
		}
	}
	if diff := cmp.Diff(want, v.total); diff != "" {
		t.Errorf("increases of %d keys differ (- want, + got):\n%s", many, diff)
	}
}

// restart ends a Set and continues with another one.
func restart(t *testing.T, s *counters.Set, top int) *counters.Set {
	t.Helper()
	data, err := json.Marshal(s.State())
	if err != nil {
		t.Fatal(err)
	}
	var state counters.State
	if err := json.Unmarshal(data, &state); err != nil {
		t.Fatal(err)
	}
	s = newSet(t, spec(top))
	s.Restore(state)
	return s
}

// change changes, resets or deletes an entry.
func change(t *testing.T, r *rand.Rand, s *counters.Set, want []uint64, entries map[int][2]uint64, many int) {
	t.Helper()
	k := r.IntN(many)
	was, known := entries[k]
	if known && r.IntN(4) == 0 {
		delete(entries, k)
		return
	}
	now := [2]uint64{was[0] + r.Uint64N(uint64(100*(1+k%5))), was[1] + r.Uint64N(3)}
	var from []byte
	if known {
		from = value(was[0], uint32(was[1]))
	}
	for i := range now {
		want[i] += now[i] - was[i]
	}
	entries[k] = now
	s.Changed(key(t, k, 1), from, value(now[0], uint32(now[1])))
}

// TestStateOfAnotherSpecification: the fields, labels or the maximum of series changed with a restart.
func TestStateOfAnotherSpecification(t *testing.T) {
	s := newSet(t, spec(3))
	for i := range 3 {
		s.Changed(key(t, i, 1), nil, value(uint64(10*i+1), 1))
	}
	state := s.State()
	one := newSet(t, spec(1))
	one.Restore(state)
	wantRows(t, one, "10.0.0.2:443 [21 1]", "other:other [0 0]")
	fields := newSet(t, counters.Spec{Fields: []string{"packets", "bytes"}, Labels: spec(1).Labels, Top: 3})
	fields.Restore(state)
	wantRows(t, fields, "other:other [0 0]")
	renamed := spec(3)
	renamed.Labels = []counters.Label{{Name: "destination", Field: "pid"}, {Name: "port", Field: "dport"}}
	labels := newSet(t, renamed)
	labels.Restore(state)
	wantRows(t, labels, "other:other [0 0]")
}

// TestHostileState restores a file in which some series cannot be exported.
func TestHostileState(t *testing.T) {
	s := newSet(t, spec(10))
	s.Restore(counters.State{
		Labels: spec(1).Labels, Fields: spec(1).Fields, Other: []uint64{5, 5},
		Series: []counters.SeriesState{
			{Labels: []string{"other", "other"}, Totals: []uint64{1, 1}},
			{Labels: []string{"a", "1"}, Totals: []uint64{1, 1}},
			{Labels: []string{"a", "1"}, Totals: []uint64{2, 2}},
			{Labels: []string{"a\xff", "1"}, Totals: []uint64{1, 1}},
			{Labels: []string{"b"}, Totals: []uint64{1, 1}},
			{Labels: []string{"c", "1"}, Totals: []uint64{1}},
		},
	})
	wantRows(t, s, "a:1 [1 1]", "other:other [5 5]")
}
