package filter

import (
	"testing"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
)

// FuzzFilter parses conditions and compares them with entries. No entry meets both a condition with = and the one with !=.
func FuzzFilter(f *testing.F) {
	key, value := schematest.Entry()
	for _, expr := range []string{
		"sport=443", "key.vip!=192.0.2.0/24", "saddr=fd00::/8", "proto=TCP", "level<=-3", "alive=true", "mac=02:00:00:00:00:aa",
		"comm=0x612262", `comm=a"b`, "load>1.5", "hops.dev=eth9", "last_seen<2026-01-01T00:00:05Z", "ports=443", "cpu.packets=5", "blob=dead",
	} {
		f.Add(expr, key, value)
	}
	schemas := []*schema.Schema{schematest.Conntrack(), schematest.PerCPU(), schematest.Rich()}
	f.Fuzz(func(t *testing.T, expr string, key, value []byte) {
		for _, s := range schemas {
			parsed, err := Parse(s, expr)
			if err != nil {
				continue
			}
			parsed.Links = schematest.Links{2: "eth0", 9: "eth9"}
			parsed.Match(key, value, schematest.Boot)
			whole := func(half []byte, size int) []byte {
				return append(half[:min(len(half), size):min(len(half), size)], make([]byte, max(0, size-len(half)))...)
			}
			key, value := whole(key, s.Key.Size), whole(value, s.Value.Size)
			matches, opposite := parsed.Match(key, value, schematest.Boot), *parsed
			switch parsed.op {
			case "=":
				opposite.op = "!="
			case "!=":
				opposite.op = "="
			default:
				continue
			}
			if opposite.Match(key, value, schematest.Boot) == matches {
				t.Fatalf("%q: got %t, and the same for %s, want one of the two to match", expr, matches, opposite.op)
			}
		}
	})
}
