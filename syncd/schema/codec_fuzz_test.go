package schema

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// richSchema has fields of all kinds whose values every peer can store. Wire bytes that are decoded
// and encoded again are therefore unchanged.
func richSchema() *Schema {
	flow := &Message{Name: "flow", Size: 12, Fields: []Field{
		{Name: "packets", Number: 1, Size: 4, Kind: KindUint},
		{Name: "first", Number: 2, Offset: 4, Size: 1, BitSize: 3, Kind: KindUint},
		{Name: "last", Number: 3, Offset: 4, Size: 4, BitOffset: 5, BitSize: 27, Kind: KindSint},
		{Name: "mac", Number: 4, Offset: 6 + 3, Size: 3, Kind: KindBytes},
	}}
	deep := &Message{Name: "deep", Size: 40, Fields: []Field{
		{Name: "flow", Number: 3, Size: 12, Count: 2, Kind: KindMessage, Message: flow},
		{Name: "address", Number: 1, Offset: 24, Size: 16, Kind: KindBytes},
	}}
	fields := []Field{
		{Name: "u8", Size: 1, Kind: KindUint},
		{Name: "u16", Size: 2, Kind: KindUint},
		{Name: "u32", Size: 4, Kind: KindUint},
		{Name: "u64", Size: 8, Kind: KindUint},
		{Name: "be16", Size: 2, Kind: KindUint, Roles: RoleBE},
		{Name: "be32", Size: 4, Kind: KindUint, Roles: RoleBE},
		{Name: "be64", Size: 8, Kind: KindUint, Roles: RoleBE},
		{Name: "s8", Size: 1, Kind: KindSint},
		{Name: "s32", Size: 4, Kind: KindSint},
		{Name: "s64", Size: 8, Kind: KindSint},
		{Name: "yes", Size: 1, Kind: KindBool},
		{Name: "state", Size: 4, Kind: KindEnum, Enum: &Enum{Name: "state", Signed: true}},
		{Name: "small", Size: 1, Kind: KindEnum, Enum: &Enum{Name: "small", Signed: true}},
		{Name: "large", Size: 8, Kind: KindEnum, Enum: &Enum{Name: "large"}},
		{Name: "float", Size: 4, Kind: KindFloat},
		{Name: "double", Size: 8, Kind: KindFloat},
		{Name: "ipv4", Size: 4, Kind: KindUint, Roles: RoleIPv4},
		{Name: "ipv6", Size: 16, Kind: KindBytes},
		{Name: "text", Size: 20, Kind: KindBytes},
		{Name: "ports", Size: 2, Count: 3, Kind: KindUint, Roles: RoleBE},
		{Name: "ints", Size: 4, Count: 2, Kind: KindSint},
		{Name: "hops", Size: 4, Count: 2, Kind: KindUint, Roles: RoleIPv4},
		{Name: "names", Size: 6, Count: 3, Kind: KindBytes},
		{Name: "link", Size: 4, Kind: KindIfname},
		{Name: "links", Size: 2, Count: 3, Kind: KindIfname},
		{Name: "seen", Size: 8, Kind: KindTime, Roles: RoleKtime, Signed: true},
		{Name: "deep", Size: 40, Kind: KindMessage, Message: deep},
		{Name: "flows", Size: 16, Count: 3, Kind: KindMessage, Message: flow},
		{Name: "own", Size: 4, Kind: KindUint, Roles: RoleLocal},
		{Name: "pinned", Number: 1 << 25, Size: 4, Kind: KindUint},
	}
	return oneValue(fields...)
}

// richValue returns a value in which zeros percent of the bytes are zero.
func richValue(r *rand.Rand, s *Schema, zeros int) []byte {
	value := make([]byte, s.Value.Size)
	for i := range value {
		if r.IntN(100) >= zeros {
			value[i] = byte(r.Uint32())
		}
	}
	for i := range s.Value.Fields {
		if f := &s.Value.Fields[i]; f.Kind == KindIfname {
			for e := range max(f.Count, 1) {
				l := accessorOf(&Field{Size: f.Size, Kind: KindUint}, f.Offset+e*f.Size)
				l.store(ptr(value[l.off:]), r.Uint64N(4))
			}
		}
	}
	return value
}

// FuzzDecode checks that the decoder accepts only canonical wire bytes.
func FuzzDecode(f *testing.F) {
	s := richSchema()
	enc, dec := newCodec(f, s, s)
	r := rand.New(rand.NewPCG(3, 4))
	for _, zeros := range []int{0, 50, 80, 95} {
		f.Add(enc.AppendValue(nil, nil, richValue(r, s, zeros), nil))
	}
	value := make([]byte, s.Value.Size)
	f.Fuzz(func(t *testing.T, wire []byte) {
		if err := dec.Value(value, nil, wire, nil); err != nil {
			checkCodecError(t, err)
			return
		}
		if again := enc.AppendValue(nil, nil, value, nil); !bytes.Equal(again, wire) {
			t.Errorf("decode % x: got no error, want an error, or these bytes as the canonical form, which is % x", wire, again)
		}
	})
}

// TestRichRoundTrip checks that values like the seeds of the fuzzer are decoded unchanged.
func TestRichRoundTrip(t *testing.T) {
	s := richSchema()
	enc, dec := newCodec(t, s, s)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 2000 {
		value := richValue(r, s, i%101)
		got := make([]byte, len(value))
		if err := dec.Value(got, nil, enc.AppendValue(nil, nil, value, nil), nil); err != nil {
			t.Fatal(err)
		}
		if want := masked(value, s.Carried()); !bytes.Equal(got, want) {
			t.Fatalf("round trip: got % x, want % x", got, want)
		}
	}
}

// layoutReader builds a schema, valid or not, from the bytes of a malicious peer.
type layoutReader struct {
	in     []byte
	fields int
}

func (r *layoutReader) next() int {
	if len(r.in) == 0 {
		return 0
	}
	b := r.in[0]
	r.in = r.in[1:]
	return int(b)
}

// size returns small numbers, and limits of ranges.
func (r *layoutReader) size() int {
	if n := r.next(); n < 250 {
		return n % 20
	}
	return []int{-1, math.MinInt, math.MaxInt, 1 << 29, MaxSize, MaxSize + 1}[r.next()%6]
}

func (r *layoutReader) message(depth int) *Message {
	m := &Message{Size: r.size() * 4}
	for range r.next() % 6 {
		if r.fields++; r.fields > 100 {
			break
		}
		f := Field{
			Name: string(rune('a' + r.next()%6)), Number: len(m.Fields) + 1 + r.next()/128*r.size(), Offset: r.size(),
			Size: []int{1, 2, 4, 8, 16, r.size()}[r.next()%6], Kind: Kind(r.next() % 11), Roles: Role(r.next()) | Role(r.next()/128)<<8,
		}
		switch r.next() % 8 {
		case 0:
			f.Count = r.size()
		case 1:
			f.BitOffset, f.BitSize = r.size(), r.size()
		}
		if f.Kind == KindEnum {
			f.Enum = &Enum{Signed: r.next()%2 == 0}
		}
		if f.Kind == KindMessage && depth < MaxDepth+2 {
			f.Message = r.message(depth + 1)
		}
		m.Fields = append(m.Fields, f)
	}
	return m
}

// FuzzSchemaPair checks that any schema of a peer, and any wire bytes for it, cause at most an
// error.
func FuzzSchemaPair(f *testing.F) {
	f.Add([]byte{4, 1, 0, 0, 0, 2, 1, 0, 9, 9}, []byte{4, 1, 0, 0, 0, 2, 1, 0, 9, 9}, []byte{8, 1})
	f.Add([]byte{19, 3, 0, 0, 0, 0, 1, 0, 0, 2, 1, 0, 4, 1, 2}, []byte{19, 1, 0, 0, 0, 1, 1, 0, 0}, []byte{8, 1, 16, 3})
	f.Fuzz(func(t *testing.T, remote, local, wire []byte) {
		key := oneValue().Key
		there := &Schema{Map: "m", Key: key, Value: (&layoutReader{in: remote}).message(0)}
		here := &Schema{Map: "m", Key: key, Value: (&layoutReader{in: local}).message(0)}
		dec, err := NewDecoder(there, here, codecLinks{})
		if err != nil {
			return
		}
		value := make([]byte, here.Value.Size)
		if err := dec.Value(value, nil, wire, &codecTimes); err != nil {
			checkCodecError(t, err)
		}
		for _, keep := range dec.Keep() {
			if keep.Offset < 0 || keep.Size < 1 || keep.Offset+keep.Size > here.Value.Size {
				t.Errorf("Keep: got %v, want a range within %d bytes", keep, here.Value.Size)
			}
		}
		enc, err := NewEncoder(there, codecLinks{})
		if err != nil {
			t.Fatal(err)
		}
		whole := slices.Repeat([]byte{0xff}, there.Value.Size)
		if err := dec.Value(value, nil, enc.AppendValue(nil, nil, whole, &codecTimes), &codecTimes); err != nil {
			checkCodecError(t, err)
		}
	})
}
