package schema_test

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
)

// TestRoundTrip checks a random struct of a random layout. All sent bits are decoded unchanged, and
// encode to the same wire bytes again. Damaged wire bytes cause at most an error.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := schematest.DrawSchema(t)
		enc, dec := schema.NewCodec(t, s, s)
		key, value := schematest.DrawStruct(t, s.Key), schematest.DrawStruct(t, s.Value)
		wireKey, err := enc.AppendKey([]byte("before"), key)
		if err != nil {
			t.Fatal(err)
		}
		wireKey = wireKey[len("before"):]
		wire := enc.AppendValue(nil, nil, value, &schema.CodecTimes)
		if len(wireKey) > enc.MaxKey()-schema.Slack || len(wire) > enc.MaxValue()-schema.Slack {
			t.Fatalf("wire sizes: got %d and %d bytes, want at most MaxKey and MaxValue",
				len(wireKey), len(wire))
		}
		gotKey := bytes.Repeat([]byte{0xaa}, len(key))
		if err := dec.Key(gotKey, wireKey); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(gotKey, key) {
			t.Fatalf("round trip of a key: got % x, want % x by wire bytes % x", gotKey, key, wireKey)
		}
		got := bytes.Repeat([]byte{0xaa}, len(value))
		if err := dec.Value(got, nil, wire, &schema.CodecTimes); err != nil {
			t.Fatal(err)
		}
		if want := schema.Masked(value, s.Carried()); !bytes.Equal(got, want) {
			t.Fatalf("round trip of a value: got % x, want % x by wire bytes % x", got, want, wire)
		}
		if again := enc.AppendValue(nil, nil, got, &schema.CodecTimes); !bytes.Equal(again, wire) {
			t.Fatalf("encode again: want % x, got % x", wire, again)
		}
		if !dec.Same() || !slices.Equal(dec.Keep(), s.Local()) {
			t.Fatalf("decoder: got Same %v, Keep %v, want true and %v", dec.Same(), dec.Keep(), s.Local())
		}
		damaged := damage(t, wire)
		if err := dec.Value(got, nil, damaged, &schema.CodecTimes); err != nil {
			schema.CheckCodecError(t, err)
		} else if want := enc.AppendValue(nil, nil, got, &schema.CodecTimes); !hasTime(s.Value) && !bytes.Equal(want, damaged) {
			t.Fatalf("decode % x: got no error, want an error, or these bytes as the canonical form, which is % x", damaged, want)
		}
	})
}

// damage makes small changes to wire bytes.
func damage(t *rapid.T, wire []byte) []byte {
	b := slices.Clone(wire)
	for range 1 + rapid.IntRange(0, 2).Draw(t, "changes") {
		at := rapid.IntRange(0, len(b)).Draw(t, "at")
		switch rapid.IntRange(0, 3).Draw(t, "how") {
		case 0:
			b = b[:at]
		case 1:
			b = slices.Insert(b, at, rapid.Byte().Draw(t, "byte"))
		case 2:
			b = append(b, b[at:]...)
		default:
			if at < len(b) {
				b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			}
		}
	}
	return b
}

// hasTime reports whether time stamps are sent. The decoder moves times outside the range of the
// local clock into that range.
func hasTime(m *schema.Message) bool {
	return slices.ContainsFunc(m.Fields, func(f schema.Field) bool {
		return f.Sent() && (f.Kind == schema.KindTime || f.Kind == schema.KindMessage && hasTime(f.Message))
	})
}
