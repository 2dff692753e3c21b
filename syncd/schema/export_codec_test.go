package schema

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"
)

// comparison holds what an entry's reader sees against the struct bytes. It reads the bytes
// bit by bit and by the description alone, so that it shares no mistake with the codec.
type comparison struct {
	t     rapid.TB
	times *Times
	links Links
}

// half decodes what the encoder made of a key or value, with the exported file's type.
func (c *comparison) half(d protoreflect.MessageDescriptor, m *Message, data, wire []byte) {
	c.t.Helper()
	msg := dynamicpb.NewMessage(d)
	if err := proto.Unmarshal(wire, msg); err != nil {
		c.t.Fatalf("decode %x as %s: %v", wire, d.FullName(), err)
	}
	c.message(msg, m, data)
}

func (c *comparison) message(msg protoreflect.Message, m *Message, data []byte) {
	c.t.Helper()
	if unknown := msg.GetUnknown(); len(unknown) > 0 {
		c.t.Fatalf("%s: fields that the type has not: %x", msg.Descriptor().FullName(), unknown)
	}
	sent := 0
	for i := range m.Fields {
		f := &m.Fields[i]
		d := msg.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(f.Number))
		if !f.Sent() {
			continue
		}
		sent++
		if d.IsList() != (f.Count > 0) {
			c.t.Fatalf("%s: a list is %t", d.FullName(), d.IsList())
		}
		if !d.IsList() {
			c.element(d, msg.Get(d), f, data, 0)
			continue
		}
		list := msg.Get(d).List()
		if list.Len() > f.Count {
			c.t.Fatalf("%s has %d elements, not %d", d.FullName(), list.Len(), f.Count)
		}
		for i := range f.Count {
			if i < list.Len() {
				c.element(d, list.Get(i), f, data, i)
			} else {
				c.element(d, list.NewElement(), f, data, i)
			}
		}
	}
	if n := msg.Descriptor().Fields().Len(); n != sent {
		c.t.Fatalf("%s has %d fields, not %d", msg.Descriptor().FullName(), n, sent)
	}
}

// element compares one element.
func (c *comparison) element(d protoreflect.FieldDescriptor, got protoreflect.Value, f *Field, data []byte, i int) {
	c.t.Helper()
	at := data[f.Offset+i*f.Size:]
	var want any
	switch f.Kind {
	case KindMessage:
		c.message(got.Message(), f.Message, at[:f.Message.Size])
		return
	case KindBytes:
		if padded := append(bytes.Clone(got.Bytes()), make([]byte, f.Size-len(got.Bytes()))...); !bytes.Equal(padded, at[:f.Size]) {
			c.t.Fatalf("%s is %x, not %x", d.FullName(), got.Bytes(), at[:f.Size])
		}
		return
	case KindIfname:
		name, _ := c.links.Name(uint32(bitsAt(f, at)))
		want = name
	case KindTime:
		want = c.wall(f, bitsAt(f, at))
	case KindBool:
		want = bitsAt(f, at) != 0
	case KindFloat:
		if bits := bitsAt(f, at); f.Size == 4 && math.Float32bits(float32(got.Float())) == uint32(bits) ||
			f.Size == 8 && math.Float64bits(got.Float()) == bits || math.IsNaN(got.Float()) && math.IsNaN(floatOf(f, bits)) {
			return // what bits a NaN has is lost on the way through dynamicpb
		}
	case KindEnum:
		want = c.enum(d, f, bitsAt(f, at))
	case KindSint:
		want = int64(extended(f, bitsAt(f, at)))
		if d.Kind() == protoreflect.Sint32Kind {
			want = int32(extended(f, bitsAt(f, at)))
		}
	default:
		want = bitsAt(f, at)
		if f.Size <= 4 {
			want = uint32(bitsAt(f, at))
		}
	}
	if got.Interface() != want {
		c.t.Fatalf("%s is %v (%T), not %v (%T)", d.FullName(), got.Interface(), got.Interface(), want, want)
	}
}

// enum returns an enum's value, and checks that its name is C's.
func (c *comparison) enum(d protoreflect.FieldDescriptor, f *Field, bits uint64) any {
	if f.Enum.Signed {
		bits = extended(f, bits)
	}
	switch {
	case f.Size == 8 && f.Enum.Signed:
		return int64(bits)
	case f.Size == 8:
		return bits
	}
	number := protoreflect.EnumNumber(int32(bits))
	named := d.Enum().Values().ByNumber(number)
	for _, v := range f.Enum.Values {
		if v.Value == bits && !strings.HasSuffix(string(named.Name()), v.Name) && !d.Enum().Options().(*descriptorpb.EnumOptions).GetAllowAlias() {
			c.t.Fatalf("%s: %d is %s, not %s", d.FullName(), number, named.Name(), v.Name)
		}
	}
	return number
}

// wall converts a reading of a clock, without rounding on the way.
func (c *comparison) wall(f *Field, bits uint64) int64 {
	if bits == 0 {
		return 0
	}
	reading := new(big.Int).SetUint64(bits)
	if f.Signed {
		reading.SetInt64(int64(extended(f, bits)))
	} else if f.Size == 8 && bits > math.MaxInt64 {
		return forever
	}
	add := c.times.Ktime
	switch {
	case f.Roles&RoleBoottime != 0:
		add = c.times.Boottime
	case f.Roles&RoleSeconds != 0:
		reading.Mul(reading, big.NewInt(1e9))
	case f.Roles&RoleJiffies != 0:
		reading.Sub(reading, new(big.Int).SetUint64(c.times.Jiffies))
		if f.Size == 4 {
			reading.SetInt64(int64(int32(uint32(bits) - uint32(c.times.Jiffies))))
		}
		reading.Mul(reading, big.NewInt(c.times.Tick))
		add = c.times.JiffiesAt
	}
	reading.Add(reading, big.NewInt(add))
	switch {
	case reading.Sign() == 0:
		return 1 // 0 is none
	case reading.IsInt64():
		return reading.Int64()
	case reading.Sign() < 0:
		return math.MinInt64
	}
	return forever
}

// bitsAt returns an unsigned number, one bit at a time.
func bitsAt(f *Field, data []byte) (v uint64) {
	size := 8 * f.Size
	if f.BitSize > 0 {
		size = f.BitSize
	}
	for i := range size {
		bit := f.BitOffset + i
		v |= uint64(data[bit/8]>>(bit%8)&1) << i
	}
	if f.BitSize == 0 && (f.Roles&RoleBE != 0 || f.Roles&RoleIPv4 != 0 && f.Size == 4) {
		var swapped [8]byte
		binary.LittleEndian.PutUint64(swapped[:], v)
		v = binary.BigEndian.Uint64(swapped[:]) >> (64 - size)
	}
	return v
}

// extended extends the sign of what bitsAt returned.
func extended(f *Field, v uint64) uint64 {
	size := 8 * f.Size
	if f.BitSize > 0 {
		size = f.BitSize
	}
	if v>>(size-1)&1 != 0 {
		v |= math.MaxUint64 << (size - 1)
	}
	return v
}

// What the daemon sends is what a program that has nothing but the exported file
// reads: here with an entry of which every field is known.
func TestExportedFileReadsEntry(t *testing.T) {
	s, l := conntrack(), links{2: "eth0", 9: "eth9"}
	key, value := entry()
	file := compile(t, export(t, s))
	encoder, err := NewEncoder(s, l)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := encoder.AppendKey(nil, key)
	if err != nil {
		t.Fatal(err)
	}
	c := comparison{t: t, times: boot, links: l}
	c.half(file.Messages().ByName("CtMapKey"), s.Key, key, wire)
	c.half(file.Messages().ByName("CtMapValue"), s.Value, value, encoder.AppendValue(nil, value, boot))
}

// Whatever the types: a program that has nothing but the exported file reads from the
// encoder's bytes what the struct holds.
func TestExportedFileReadsAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSchema(t)
		nameValues(t, s.Key)
		nameValues(t, s.Value)
		if rapid.Bool().Draw(t, "per CPU") {
			s = s.PerCPU(3)
		}
		encoder, err := NewEncoder(s, codecLinks{})
		if err != nil {
			t.Fatal(err)
		}
		types := compile(t, export(t, s)).Messages()
		c := comparison{t: t, times: &codecTimes, links: codecLinks{}}

		key := drawStruct(t, s.Key)
		wire, err := encoder.AppendKey(nil, key)
		if err != nil {
			t.Fatal(err)
		}
		c.half(types.ByName("MKey"), s.Key, key, wire)

		value := drawStruct(t, s.Value)
		fields := make([]byte, len(value))
		s.Value.mark(fields, 0, func(*Field) bool { return true })
		for i := range value {
			value[i] |= ^fields[i] // padding, which is nobody's
		}
		c.half(types.ByName("MValue"), s.Value, value, encoder.AppendValue(nil, value, &codecTimes))
	})
}

// nameValues gives the enums of m values that fit them. Two may have one value.
func nameValues(t *rapid.T, m *Message) {
	for i := range m.Fields {
		f := &m.Fields[i]
		if f.Kind == KindMessage {
			nameValues(t, f.Message)
		}
		if f.Kind != KindEnum {
			continue
		}
		for n := range rapid.IntRange(0, 4).Draw(t, "values") {
			v := rapid.SampledFrom([]uint64{0, 1, 2, 127, math.MaxUint64, 1 << (8*f.Size - 1)}).Draw(t, "value")
			unused := 64 - 8*f.Size
			if f.Enum.Signed {
				v = uint64(int64(v<<unused) >> unused)
			} else {
				v = v << unused >> unused
			}
			f.Enum.Values = append(f.Enum.Values, EnumValue{fmt.Sprintf("VALUE_%d", n), v})
		}
	}
}
