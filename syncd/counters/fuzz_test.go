package counters_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"mapsync/printable"
	"mapsync/syncd/counters"
	"mapsync/syncd/schema/schematest"

	"github.com/google/go-cmp/cmp"
)

// FuzzCounters counts arbitrary entries by the fields that a setting names. The data are the sizes and the bytes of keys and values.
func FuzzCounters(f *testing.F) {
	key, value := schematest.Entry()
	entries := slices.Concat(key, value, key, make([]byte, len(value)), make([]byte, len(key)), value)
	f.Add("saddr sport", "packets", 1, entries)
	f.Add("dev proto key.zone", "packets nat.dport", 2, entries)
	f.Add("", "syn packets", 0, entries)
	f.Add("comm", "drift", 3, entries)
	links := schematest.Links{2: "e\x1b]0;\u202e", 9: "eth9"}
	f.Fuzz(func(t *testing.T, labels, fields string, top int, data []byte) {
		spec := counters.Spec{Fields: strings.Fields(fields), Top: 1 + top&7}
		for _, field := range strings.Fields(labels) {
			spec.Labels = append(spec.Labels, counters.Label{Name: "l", Field: field})
		}
		if len(spec.Fields) == 0 {
			return // refused by the settings
		}
		types := schematest.Conntrack()
		set, exact := counters.New(spec), counters.New(counters.Spec{Labels: spec.Labels, Fields: spec.Fields, Top: 1 << 20})
		if err := errors.Join(set.SetTypes(types, links), exact.SetTypes(types, links)); err != nil {
			if !errors.Is(err, counters.ErrField) {
				t.Fatalf("set types: got error %v, want ErrField", err)
			}
			return
		}
		var from []byte
		for size := types.Key.Size + types.Value.Size; len(data) >= size; data = data[size:] {
			key, to := data[:types.Key.Size], data[types.Key.Size:size]
			set.Changed(key, from, to)
			exact.Changed(key, from, to)
			from = to
			if got, want := checkedSums(t, set, spec, spec.Top), checkedSums(t, exact, spec, 1<<20); !slices.Equal(got, want) {
				t.Fatalf("sums: got %d with %d series, want %d", got, spec.Top, want)
			}
		}
		checkRestored(t, set, spec)
	})
}

// checkedSums checks the series of a Set, at most top besides the one of all others, and returns the sum of each counter.
func checkedSums(t *testing.T, set *counters.Set, spec counters.Spec, top int) []uint64 {
	t.Helper()
	rows, sums := set.Collect(clock), make([]uint64, len(spec.Fields))
	if len(rows) > top+1 {
		t.Fatalf("series: got %d, want at most %d", len(rows), top+1)
	}
	for _, row := range rows {
		if len(row.Labels) != len(spec.Labels) || !printable.Is(strings.Join(row.Labels, "")) {
			t.Fatalf("labels: got %q, want %d printable ones", row.Labels, len(spec.Labels))
		}
		for i, n := range row.Totals {
			sums[i] += n
		}
	}
	return sums
}

// checkRestored checks that the state of a Set survives a restart.
func checkRestored(t *testing.T, set *counters.Set, spec counters.Spec) {
	t.Helper()
	saved, err := json.Marshal(set.State())
	if err != nil {
		t.Fatal(err)
	}
	var state counters.State
	if err := json.Unmarshal(saved, &state); err != nil {
		t.Fatal(err)
	}
	restored := counters.New(spec)
	restored.Restore(state)
	order := func(rows []counters.Row) []counters.Row {
		slices.SortFunc(rows, func(a, b counters.Row) int { return slices.Compare(a.Labels, b.Labels) })
		return rows
	}
	if diff := cmp.Diff(order(set.Collect(clock)), order(restored.Collect(clock))); diff != "" {
		t.Fatalf("series after a restart differ (- want, + got):\n%s", diff)
	}
}
