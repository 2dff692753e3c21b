package schema

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// codecLinks are the interfaces of the codec tests.
type codecLinks struct{}

var codecLinkNames = []string{1: "lo", 2: "eth0", 3: "a-long-name-150"}

func (codecLinks) Name(index uint32) (string, bool) {
	if index == 0 || int(index) >= len(codecLinkNames) {
		return "", false
	}
	return codecLinkNames[index], true
}

func (codecLinks) Index(name string) (uint32, bool) {
	i := slices.Index(codecLinkNames, name)
	return uint32(i), i > 0
}

// codecTimes are the times of a host with some uptime.
var codecTimes = Times{Ktime: 1e18, Boottime: 1e18 + 5e9, Jiffies: 5e9, JiffiesAt: 1e18 + 7e13, Tick: 4e6}

// layoutGen draws layouts: the fields first, then their offsets.
type layoutGen struct {
	t   *rapid.T
	key bool
}

func (g layoutGen) upTo(n int, what string) int { return rapid.IntRange(0, n).Draw(g.t, what) }

func (g layoutGen) fields(depth, first int) []Field {
	fields := make([]Field, 1+g.upTo(6, "fields"))
	number := 0
	for i := range fields {
		f := g.field(depth)
		number += 1 + g.upTo(1, "gap")
		if i == 4 {
			number += rapid.SampledFrom([]int{0, 20, 30000, 1 << 22, 1 << 28}).Draw(g.t, "pinned")
		}
		f.Name, f.Number = fmt.Sprintf("f%d", first+i), number
		fields[i] = f
	}
	if rapid.Bool().Draw(g.t, "numbers do not ascend") {
		fields[0].Number, fields[len(fields)-1].Number = fields[len(fields)-1].Number, fields[0].Number
	}
	return fields
}

func (g layoutGen) field(depth int) Field {
	kinds := []Kind{KindUint, KindUint, KindUint, KindSint, KindBool, KindEnum, KindFloat, KindBytes, KindIfname}
	if !g.key {
		kinds = append(kinds, KindTime, KindNone)
	}
	if depth < 3 {
		kinds = append(kinds, KindMessage, KindMessage)
	}
	f := Field{Kind: rapid.SampledFrom(kinds).Draw(g.t, "kind"), Size: 1 << g.upTo(3, "size")}
	switch f.Kind {
	case KindBool:
		f.Size = 1
	case KindEnum:
		f.Enum = &Enum{Name: "e", Signed: rapid.Bool().Draw(g.t, "signed")}
	case KindFloat:
		f.Size = max(4, f.Size)
	case KindBytes:
		f.Size = rapid.SampledFrom([]int{1, 3, 6, 8, 15, 16, 17, 130}).Draw(g.t, "bytes")
	case KindMessage:
		f.Message = g.place(g.fields(depth+1, 0))
		f.Size = f.Message.Size
	case KindTime:
		f.Size = max(4, f.Size)
		f.Roles = rapid.SampledFrom([]Role{RoleKtime, RoleBoottime, RoleJiffies, RoleSeconds}).Draw(g.t, "clock")
		f.Signed = rapid.Bool().Draw(g.t, "signed")
		if f.Roles&(RoleKtime|RoleBoottime) != 0 {
			f.Size = 8
		}
	}
	if f.Kind == KindUint {
		f.Roles |= rapid.SampledFrom([]Role{0, RoleBE, RoleIPv4}).Draw(g.t, "order")
	}
	if !g.key {
		f.Roles |= rapid.SampledFrom([]Role{0, 0, 0, RoleVolatile, RoleLocal}).Draw(g.t, "role")
	}
	switch f.Kind {
	case KindUint, KindSint, KindEnum, KindBool:
		if g.upTo(2, "bitfield") == 0 {
			f.Roles &^= RoleBE | RoleIPv4
			f.BitSize = 1 + g.upTo(f.Size*8-1, "bits")
			return f
		}
	}
	if g.upTo(3, "array") == 0 {
		f.Count = 1 + g.upTo(5, "count")
	}
	return f
}

// place sets the offset of each field, with or without padding.
func (g layoutGen) place(fields []Field) *Message {
	bit := 0
	for i := range fields {
		f := &fields[i]
		if f.BitSize == 0 || g.upTo(3, "new byte") == 0 {
			bit = (bit+7)/8*8 + 8*rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(g.t, "padding")
		}
		f.Offset, f.BitOffset = bit/8, bit%8
		if f.BitSize > 0 {
			bit += f.BitSize
		} else {
			bit += f.Bytes() * 8
		}
	}
	return &Message{Name: "m", Size: (bit+7)/8 + rapid.SampledFrom([]int{0, 0, 2, 8}).Draw(g.t, "padding"), Fields: fields}
}

func drawSchema(t *rapid.T) *Schema {
	key := layoutGen{t: t, key: true}
	value := layoutGen{t: t}
	return &Schema{Map: "m", Key: key.place(key.fields(1, 0)), Value: value.place(value.fields(0, 0))}
}

// drawStruct draws struct bytes that a peer decodes unchanged: time stamps and interfaces are
// valid, and the padding is zero.
func drawStruct(t *rapid.T, m *Message) []byte {
	b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 0, 0, 1, 2, 0x7f, 0x80, 0xff}), m.Size, m.Size).Draw(t, "struct")
	fields := make([]byte, m.Size)
	m.mark(fields, 0, func(*Field) bool { return true })
	for i := range b {
		b[i] &= fields[i]
	}
	restrictValues(t, m, b)
	return b
}

func restrictValues(t *rapid.T, m *Message, b []byte) {
	for i := range m.Fields {
		f := &m.Fields[i]
		for e := range max(f.Count, 1) {
			element := b[f.Offset+e*f.Size:]
			switch f.Kind {
			case KindMessage:
				restrictValues(t, f.Message, element[:f.Size])
			case KindIfname:
				l := accessorOf(&Field{Kind: KindUint, Size: f.Size}, 0)
				l.store(ptr(element), rapid.Uint64Range(0, 3).Draw(t, "ifindex"))
			case KindTime:
				l := accessorOf(&Field{Kind: KindUint, Size: f.Size}, 0)
				l.store(ptr(element), rapid.Uint64Range(0, 1<<31-1).Draw(t, "reading"))
			}
		}
	}
}

func masked(b, mask []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = b[i] & mask[i]
	}
	return out
}

func newCodec(t rapid.TB, remote, local *Schema) (*Encoder, *Decoder) {
	enc, err := NewEncoder(remote, codecLinks{})
	if err != nil {
		t.Fatal(err)
	}
	dec, err := NewDecoder(remote, local, codecLinks{})
	if err != nil {
		t.Fatal(err)
	}
	return enc, dec
}

// TestRoundTrip checks a random struct of a random layout. All sent bits are decoded unchanged, and
// encode to the same wire bytes again. Damaged wire bytes cause at most an error.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		enc, dec := newCodec(t, s, s)
		key, value := drawStruct(t, s.Key), drawStruct(t, s.Value)
		wireKey, err := enc.AppendKey([]byte("before"), key)
		if err != nil {
			t.Fatal(err)
		}
		wireKey = wireKey[len("before"):]
		wire := enc.AppendValue(nil, value, &codecTimes)
		if len(wireKey) > enc.MaxKey()-slack || len(wire) > enc.MaxValue()-slack {
			t.Fatalf("wire sizes: got %d and %d bytes, want at most MaxKey and MaxValue",
				len(wireKey), len(wire))
		}
		gotKey := bytes.Repeat([]byte{0xaa}, len(key))
		if err := dec.Key(gotKey, wireKey); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(gotKey, key) {
			t.Fatalf("round trip of key % x: got % x by wire bytes % x", key, gotKey, wireKey)
		}
		got := bytes.Repeat([]byte{0xaa}, len(value))
		if err := dec.Value(got, wire, &codecTimes); err != nil {
			t.Fatal(err)
		}
		if want := masked(value, s.Carried()); !bytes.Equal(got, want) {
			t.Fatalf("round trip of value % x: got % x by wire bytes % x", want, got, wire)
		}
		if again := enc.AppendValue(nil, got, &codecTimes); !bytes.Equal(again, wire) {
			t.Fatalf("encode again: want % x, got % x", wire, again)
		}
		if !dec.Same() || !slices.Equal(dec.Keep(), s.Local()) {
			t.Fatalf("decoder: got Same %v, Keep %v, want true and %v", dec.Same(), dec.Keep(), s.Local())
		}
		damaged := damage(t, wire)
		if err := dec.Value(got, damaged, &codecTimes); err != nil {
			checkCodecError(t, err)
		} else if want := enc.AppendValue(nil, got, &codecTimes); !hasTime(s.Value) && !bytes.Equal(want, damaged) {
			t.Fatalf("decode % x: got no error, but its canonical form is % x", damaged, want)
		}
	})
}

func checkCodecError(t rapid.TB, err error) {
	if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrRange) && !errors.Is(err, ErrLink) {
		t.Fatalf("codec error: got %v, want ErrMalformed, ErrRange or ErrLink", err)
	}
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
func hasTime(m *Message) bool {
	return slices.ContainsFunc(m.Fields, func(f Field) bool {
		return f.Sent() && (f.Kind == KindTime || f.Kind == KindMessage && hasTime(f.Message))
	})
}
