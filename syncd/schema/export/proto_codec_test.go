package export_test

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

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
)

// comparison compares decoded entries with the struct bytes. It reads the bytes bit by bit from the
// field descriptions alone, independently of the codec.
type comparison struct {
	t     rapid.TB
	times *schema.Times
	links schema.Links
}

// half decodes the wire bytes of a key or value with the type in the exported file.
func (c *comparison) half(d protoreflect.MessageDescriptor, m *schema.Message, data, wire []byte) {
	c.t.Helper()
	msg := dynamicpb.NewMessage(d)
	if err := proto.Unmarshal(wire, msg); err != nil {
		c.t.Fatalf("decode %x as %s: %v", wire, d.FullName(), err)
	}
	c.message(msg, m, data)
}

func (c *comparison) message(msg protoreflect.Message, m *schema.Message, data []byte) {
	c.t.Helper()
	if unknown := msg.GetUnknown(); len(unknown) > 0 {
		c.t.Fatalf("%s: got unknown fields %x, want none", msg.Descriptor().FullName(), unknown)
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
			c.t.Fatalf("%s: got list %t, want the opposite", d.FullName(), d.IsList())
		}
		if !d.IsList() {
			c.element(d, msg.Get(d), f, data, 0)
			continue
		}
		list := msg.Get(d).List()
		if list.Len() > f.Count {
			c.t.Fatalf("%s: got %d elements, want at most %d", d.FullName(), list.Len(), f.Count)
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
		c.t.Fatalf("%s: got %d fields, want %d", msg.Descriptor().FullName(), n, sent)
	}
}

// element compares one element.
func (c *comparison) element(d protoreflect.FieldDescriptor, got protoreflect.Value, f *schema.Field, data []byte, i int) {
	c.t.Helper()
	at := data[f.Offset+i*f.Size:]
	var want any
	switch f.Kind {
	case schema.KindMessage:
		c.message(got.Message(), f.Message, at[:f.Message.Size])
		return
	case schema.KindBytes:
		if padded := append(bytes.Clone(got.Bytes()), make([]byte, f.Size-len(got.Bytes()))...); !bytes.Equal(padded, at[:f.Size]) {
			c.t.Fatalf("%s: got %x, want %x", d.FullName(), got.Bytes(), at[:f.Size])
		}
		return
	case schema.KindIfname, schema.KindReference:
		name, _ := c.links.Name(uint32(bitsAt(f, at)))
		want = name
	case schema.KindTime:
		want = c.wall(f, bitsAt(f, at))
	case schema.KindBool:
		want = bitsAt(f, at) != 0
	case schema.KindFloat:
		if bits := bitsAt(f, at); f.Size == 4 && math.Float32bits(float32(got.Float())) == uint32(bits) ||
			f.Size == 8 && math.Float64bits(got.Float()) == bits || math.IsNaN(got.Float()) && math.IsNaN(schema.FloatOf(f, bits)) {
			return // dynamicpb does not preserve the bits of a NaN
		}
	case schema.KindEnum:
		want = c.enum(d, f, bitsAt(f, at))
	case schema.KindSint:
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
		c.t.Fatalf("%s: got %v (%T), want %v (%T)",
			d.FullName(), got.Interface(), got.Interface(), want, want)
	}
}

// enum returns the value of an enum, and checks that its name is the C name.
func (c *comparison) enum(d protoreflect.FieldDescriptor, f *schema.Field, bits uint64) any {
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
			c.t.Fatalf("%s: name of %d: got %s, want %s", d.FullName(), number, named.Name(), v.Name)
		}
	}
	return number
}

// wall converts a reading of a clock to Unix nanoseconds without rounding.
func (c *comparison) wall(f *schema.Field, bits uint64) int64 {
	if bits == 0 {
		return 0
	}
	reading := new(big.Int).SetUint64(bits)
	if f.Signed {
		reading.SetInt64(int64(extended(f, bits)))
	} else if f.Size == 8 && bits > math.MaxInt64 {
		return math.MaxInt64
	}
	add := c.times.Ktime
	switch {
	case f.Roles&schema.RoleBoottime != 0:
		add = c.times.Boottime
	case f.Roles&schema.RoleSeconds != 0:
		reading.Mul(reading, big.NewInt(1e9))
	case f.Roles&schema.RoleJiffies != 0:
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
		return 1 // 0 stands for unset
	case reading.IsInt64():
		return reading.Int64()
	case reading.Sign() < 0:
		return math.MinInt64
	}
	return math.MaxInt64
}

// bitsAt returns an unsigned number, read bit by bit.
func bitsAt(f *schema.Field, data []byte) (v uint64) {
	size := 8 * f.Size
	if f.BitSize > 0 {
		size = f.BitSize
	}
	for i := range size {
		bit := f.BitOffset + i
		v |= uint64(data[bit/8]>>(bit%8)&1) << i
	}
	if f.BitSize == 0 && (f.Roles&schema.RoleBE != 0 || f.Roles&schema.RoleIPv4 != 0 && f.Size == 4) {
		var swapped [8]byte
		binary.LittleEndian.PutUint64(swapped[:], v)
		v = binary.BigEndian.Uint64(swapped[:]) >> (64 - size)
	}
	return v
}

// extended extends the sign of a result of bitsAt.
func extended(f *schema.Field, v uint64) uint64 {
	size := 8 * f.Size
	if f.BitSize > 0 {
		size = f.BitSize
	}
	if v>>(size-1)&1 != 0 {
		v |= math.MaxUint64 << (size - 1)
	}
	return v
}

// TestProtoDecodesEntry checks that a program with only the exported file decodes an entry
// with known fields.
func TestProtoDecodesEntry(t *testing.T) {
	s, l := schematest.Conntrack(), schematest.Links{2: "eth0", 9: "eth9"}
	key, value := schematest.Entry()
	file := compile(t, protoFile(t, s))
	encoder, err := schema.NewEncoder(s, l)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := encoder.AppendKey(nil, key)
	if err != nil {
		t.Fatal(err)
	}
	c := comparison{t: t, times: schematest.Boot, links: l}
	c.half(file.Messages().ByName("CtMapKey"), s.Key, key, wire)
	c.half(file.Messages().ByName("CtMapValue"), s.Value, value, encoder.AppendValue(nil, nil, value, schematest.Boot))
}

// TestProtoDecodesRandomEntries checks that a program with only the exported file decodes
// the content of random structs.
func TestProtoDecodesRandomEntries(t *testing.T) {
	links := schematest.Links{1: "lo", 2: "eth0", 3: "a-long-name-150"}
	times := &schema.Times{Ktime: 1e18, Boottime: 1e18 + 5e9, Jiffies: 5e9, JiffiesAt: 1e18 + 7e13, Tick: 4e6}
	rapid.Check(t, func(t *rapid.T) {
		s := schematest.DrawSchema(t)
		nameValues(t, s.Key)
		nameValues(t, s.Value)
		if rapid.Bool().Draw(t, "per CPU") {
			s = s.PerCPU(3)
		}
		encoder, err := schema.NewEncoder(s, links)
		if err != nil {
			t.Fatal(err)
		}
		types := compile(t, protoFile(t, s)).Messages()
		c := comparison{t: t, times: times, links: links}

		key := schematest.DrawStruct(t, s.Key)
		wire, err := encoder.AppendKey(nil, key)
		if err != nil {
			t.Fatal(err)
		}
		c.half(types.ByName("MKey"), s.Key, key, wire)

		value := schematest.DrawStruct(t, s.Value)
		for i, fields := range schematest.FieldBits(s.Value) {
			value[i] |= ^fields // padding, with undefined content
		}
		c.half(types.ByName("MValue"), s.Value, value, encoder.AppendValue(nil, nil, value, times))
	})
}

// nameValues adds values to the enums of m that fit them. Two names may have the same value.
func nameValues(t *rapid.T, m *schema.Message) {
	for i := range m.Fields {
		f := &m.Fields[i]
		if f.Kind == schema.KindMessage {
			nameValues(t, f.Message)
		}
		if f.Kind != schema.KindEnum {
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
			f.Enum.Values = append(f.Enum.Values, schema.EnumValue{Name: fmt.Sprintf("VALUE_%d", n), Value: v})
		}
	}
}
