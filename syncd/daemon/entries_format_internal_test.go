package daemon

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"

	"pgregory.net/rapid"
)

// strange are texts that JSON writes with and without escapes.
var strange = []string{"lb1", "", `a"b\c`, "<a&b>", "\u2028\u2029", "line\nfeed\x7f", "\xff\xfe", "Zürich"}

func jsonText(s string) json.RawMessage {
	b, _ := json.Marshal(s) // a string has no error
	return b
}

// encoded returns an entry as encoding/json writes it.
func encoded(l *lister, x *listEntry, t *schema.Times) string {
	e := Entry{Deleted: x.value == nil, Expired: x.expired, Version: uint64(x.version), Pending: x.pending}
	switch l.form {
	case FormRaw:
		e.Key, e.Value = jsonText(hex.EncodeToString(x.key)), jsonText(hex.EncodeToString(x.value))
	case FormText:
		e.Key, e.Value = jsonText(string(l.printer.AppendKey(nil, x.key))), jsonText(string(l.printer.AppendValue(nil, nil, x.value, t)))
	default:
		e.Key, e.Value = l.printer.AppendJSONKey(nil, x.key), l.printer.AppendJSONValue(nil, nil, x.value, t)
	}
	if e.Deleted {
		e.Value = nil
	}
	if x.version != 0 {
		e.Owner, e.Incarnation, e.Changed = x.owner.Node, x.owner.Incarnation, changedAt(x.version)
	}
	var out bytes.Buffer
	if err := json.NewEncoder(&out).Encode(&e); err != nil {
		return err.Error()
	}
	return out.String()
}

// drawEntry draws an entry of a schema.
func drawEntry(t *rapid.T, s *schema.Schema) *listEntry {
	e := &listEntry{key: schematest.DrawStruct(t, s.Key), pending: rapid.Bool().Draw(t, "pending")}
	if rapid.Bool().Draw(t, "live") {
		e.value = schematest.DrawStruct(t, s.Value)
	} else {
		e.expired = rapid.Bool().Draw(t, "expired")
	}
	if e.version = table.Version(rapid.SampledFrom([]uint64{0, 1, 1 << 60, 1<<60 + 5, 1_763_752_000_000_000_000}).Draw(t, "version")); e.version != 0 {
		e.owner = table.Owner{Node: rapid.SampledFrom(strange).Draw(t, "owner"), Incarnation: rapid.SampledFrom([]uint64{0, 1<<60 + 1}).Draw(t, "incarnation")}
	}
	return e
}

// The JSON of an entry has the bytes that encoding/json writes, in each form.
func TestEntriesAsJSON(t *testing.T) {
	times := &schema.Times{Ktime: 1 << 60, Tick: 4_000_000}
	rapid.Check(t, func(t *rapid.T) {
		s := schematest.DrawSchema(t)
		s.Value.Fields = append(s.Value.Fields, schema.Field{
			Name: rapid.SampledFrom([]string{"text", "a<b", "a\u2028b"}).Draw(t, "name"), Number: 1000, Offset: s.Value.Size, Size: 8, Kind: schema.KindBytes, Type: "char[8]",
		})
		s.Value.Size += 8
		e := drawEntry(t, s)
		if e.value != nil {
			copy(e.value[s.Value.Size-8:], rapid.SampledFrom(strange).Draw(t, "text"))
		}
		l := &lister{
			form:    rapid.SampledFrom([]Form{FormJSON, FormText, FormRaw}).Draw(t, "form"),
			printer: export.NewPrinter(s, schematest.Links{1: "eth<0>", 2: `"`, 3: "\u2029"}),
		}
		got, want := string(l.appendJSON(nil, e, times)), encoded(l, e, times)
		if got != want {
			t.Fatalf("JSON of an entry: got\n%swant\n%s", got, want)
		}
		var decoded Entry
		if err := json.Unmarshal([]byte(got), &decoded); err != nil || strings.Count(got, "\n") != 1 {
			t.Fatalf("decode %s: %v, want one line of JSON", got, err)
		}
	})
}

func TestEntriesAsText(t *testing.T) {
	s := schema.FromSizes("ct", 2, 2)
	at := time.Unix(0, 1_763_752_000_000_000_000)
	key, value, lb1 := []byte{0, 80}, []byte{0, 1}, table.Owner{Node: "lb1", Incarnation: 5}
	for want, e := range map[string]listEntry{
		"0050 0001 owner= changed=unknown pending\n": {key: key, value: value, pending: true},
		"0050 0001 owner=lb1 changed=unknown\n":      {key: key, value: value, owner: lb1, version: 1 << 60},
		"0050 deleted owner=lb1 changed=unknown\n":   {key: key, owner: lb1, version: 1 << 60},
		"0050 expired owner=lb1 changed=unknown\n":   {key: key, owner: lb1, version: 1 << 60, expired: true},
		fmt.Sprintf("0050 0001 owner=lb1 changed=%s\n", at.Format(time.RFC3339Nano)): {
			key: key, value: value, owner: lb1, version: table.Version(at.UnixNano()),
		},
	} {
		for _, form := range []Form{FormText, FormRaw} {
			l := &lister{form: form, printer: export.NewPrinter(s, nil)}
			if got := string(l.appendText(nil, &e, nil)); got != want {
				t.Errorf("entry as %s: got %q, want %q", form, got, want)
			}
		}
	}
}
