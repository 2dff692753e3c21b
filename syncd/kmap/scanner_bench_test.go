package kmap

import (
	"testing"
	"time"

	"mapsync/syncd/table"
)

// BenchmarkScan processes a map that is in sync with its table, once per operation. The variants
// read its entries, by buckets or by iterator, and compare them. cpu-ns/entry is the
// thread's processor time.
func BenchmarkScan(b *testing.B) {
	k := benchMap(b, Options{})
	tab, err := table.New(table.Options{
		Self: table.Owner{Node: "here", Incarnation: 1}, KeySize: 48, ValueSize: 176, Refresh: 10 * time.Second,
	})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := LoadAll(b.Context(), k, tab, now); err != nil {
		b.Fatal(err)
	}
	tab.Update(func(tx *table.Tx) { tx.Adopt(*benchEntries) })
	for _, bench := range []struct {
		name string
		scan func() error
	}{
		{"buckets", func() error {
			return k.readParts(b.Context(), now, func(int64, []byte, []byte) error { return nil })
		}},
		{"iterator", iterator(b, k)},
		{"compare", func() error {
			return k.Read(b.Context(), now, (&scanPass{Scanner: &Scanner{t: tab, opts: ScannerOptions{Now: now}}}).compareAll)
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var m meter
			var work time.Duration
			b.ReportAllocs()
			for b.Loop() {
				m.start()
				if err := bench.scan(); err != nil {
					b.Fatal(err)
				}
				work += m.stop()
			}
			perEntry(b)
			b.ReportMetric(float64(work)/float64(b.N)/float64(*benchEntries), "cpu-ns/entry")
		})
	}
	if st := tab.Stats(); st.ScanFound != 0 || st.Scanned == 0 {
		b.Errorf("scan: got %d differences in %d entries, want 0", st.ScanFound, st.Scanned)
	}
}

func now() int64 { return time.Now().UnixNano() }

func (p *scanPass) compareAll(at int64, keys, values []byte) error {
	p.compare(at, keys, values)
	return nil
}

// iterator reads the same map by the iterator.
func iterator(b *testing.B, k *Map) func() error {
	i := openMap(b, k.m, Options{})
	if err := i.openDumper(); err != nil {
		b.Fatal(err)
	}
	return func() error {
		return i.readByIterator(b.Context(), now, func(int64, []byte, []byte) error { return nil })
	}
}
