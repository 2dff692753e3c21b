package daemon

import (
	"io"
	"net/http"
	"testing"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// discard is a response of which nothing is kept.
type discard struct{ http.ResponseWriter }

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkDump dumps a table. An iteration is one entry. encoding/json encodes the same entries as JSON, for comparison.
func BenchmarkDump(b *testing.B) {
	const entries = 10_000
	s := schematest.Connection()
	tab, err := table.New(table.Options{Self: table.Owner{Node: "lb1", Incarnation: 1}, KeySize: s.Key.Size, ValueSize: s.Value.Size})
	if err != nil {
		b.Fatal(err)
	}
	var all []listEntry
	tab.Update(func(tx *table.Tx) {
		for i := range entries {
			key, value := make([]byte, s.Key.Size), make([]byte, s.Value.Size)
			for j := range key {
				key[j] = byte(i >> (8 * (j % 3)))
			}
			for j := range value[:len(value)/2] {
				value[j] = byte(i + j)
			}
			const at = 1_763_752_000_000_000_000
			tx.Local(&table.Change{Key: key, Value: value, Time: at + int64(i)})
			all = append(all, listEntry{key: key, value: value, version: at + table.Version(i), owner: table.Owner{Node: "lb1", Incarnation: 1}})
		}
	})
	times := func() schema.Times { return schema.Times{Ktime: 1 << 60} }
	for name, l := range map[string]*lister{"text": {form: FormText, text: true}, "json": {form: FormJSON}, "raw": {form: FormRaw}} {
		l.t, l.schema, l.times, l.printer = tab, s, times, export.NewPrinter(s, nil)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; n < b.N; n += entries {
				if err := l.dump(discard{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("encoding-json", func(b *testing.B) {
		l, t := &lister{form: FormJSON, printer: export.NewPrinter(s, nil)}, times()
		b.ReportAllocs()
		for n := 0; n < b.N; n++ {
			_, _ = io.WriteString(io.Discard, encoded(l, &all[n%entries], &t)) // never fails
		}
	})
}
