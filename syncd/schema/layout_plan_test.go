package schema

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"testing"
	"unsafe"
)

func TestOpSize(t *testing.T) {
	if size := unsafe.Sizeof(op{}); size != 32 {
		t.Errorf("size of op: got %d bytes, want 32, so that two fit into a cache line", size)
	}
}

// TestWireEncoding compares single fields with bytes from the protobuf specification.
func TestWireEncoding(t *testing.T) {
	signed := &Enum{Signed: true}
	pair := &Message{Size: 2, Fields: []Field{
		{Name: "x", Number: 1, Size: 1, Kind: KindUint},
		{Name: "y", Number: 2, Offset: 1, Size: 1, Kind: KindUint},
	}}
	tests := []struct {
		name  string
		field Field
		value string
		want  string
	}{
		{"zero", Field{Size: 4, Kind: KindUint}, "00000000", ""},
		{"uint8", Field{Size: 1, Kind: KindUint}, "ff", "08ff01"},
		{"uint32", Field{Size: 4, Kind: KindUint}, "ffffffff", "08ffffffff0f"},
		{"uint64", Field{Size: 8, Kind: KindUint}, "ffffffffffffffff", "08ffffffffffffffffff01"},
		{"57 bits", Field{Size: 8, Kind: KindUint}, "0000000000000001", "08808080808080808001"},
		{"56 bits", Field{Size: 8, Kind: KindUint}, "ffffffffffffff00", "08ffffffffffffff7f"},
		{"big endian", Field{Size: 2, Kind: KindUint, Roles: RoleBE}, "01bb", "08bb03"},
		{"address", Field{Size: 4, Kind: KindUint, Roles: RoleIPv4}, "0a000001", "0d0100000a"},
		{"sint8", Field{Size: 1, Kind: KindSint}, "ff", "0801"},
		{"sint32", Field{Size: 4, Kind: KindSint}, "00000080", "08ffffffff0f"},
		{"sint64", Field{Size: 8, Kind: KindSint}, "feffffffffffffff", "0803"},
		{"bool", Field{Size: 1, Kind: KindBool}, "07", "0807"},
		{"enum", Field{Size: 4, Kind: KindEnum, Enum: signed}, "ffffffff", "08ffffffffffffffffff01"},
		{"unsigned enum", Field{Size: 4, Kind: KindEnum, Enum: &Enum{}}, "00000080", "0880808080f8ffffffff01"},
		{"narrow enum", Field{Size: 1, Kind: KindEnum, Enum: signed}, "ff", "08ffffffffffffffffff01"},
		{"wide enum", Field{Size: 8, Kind: KindEnum, Enum: &Enum{}}, "ffffffffffffffff", "08ffffffffffffffffff01"},
		{"float", Field{Size: 4, Kind: KindFloat}, "00000080", "0d00000080"}, // minus zero
		{"double", Field{Size: 8, Kind: KindFloat}, "000000000000f03f", "09000000000000f03f"},
		{"bytes", Field{Size: 4, Kind: KindBytes}, "00010000", "0a020001"},
		{"16 bytes", Field{Size: 16, Kind: KindBytes}, "0a000001000000000000000000000000", "0a040a000001"},
		{"array", Field{Size: 2, Count: 3, Kind: KindUint}, "000001000000", "0a020001"},
		{"addresses", Field{Size: 4, Count: 2, Kind: KindUint, Roles: RoleIPv4}, "000000000a000001", "0a08000000000100000a"},
		{"bytes array", Field{Size: 2, Count: 3, Kind: KindBytes}, "000061000000", "0a000a0161"},
		{"interface", Field{Size: 4, Kind: KindIfname}, "02000000", "0a0465746830"},
		{"unknown interface", Field{Size: 4, Kind: KindIfname}, "63000000", ""},
		{"interfaces", Field{Size: 4, Count: 3, Kind: KindIfname}, "630000000100000063000000", "0a000a026c6f"},
		{"bitfield", Field{Size: 1, Kind: KindUint, BitOffset: 2, BitSize: 3}, "1c", "0807"},
		{"signed bitfield", Field{Size: 1, Kind: KindSint, BitOffset: 2, BitSize: 3}, "1c", "0801"},
		{"message", Field{Size: 2, Kind: KindMessage, Message: pair}, "0005", "0a021005"},
		{"messages", Field{Size: 2, Count: 3, Kind: KindMessage, Message: pair}, "000001000000", "0a000a020801"},
		{"ktime", Field{Size: 8, Kind: KindTime, Roles: RoleKtime}, "0100000000000000", "090100000000000000"},
		{"never ends", Field{Size: 8, Kind: KindTime, Roles: RoleKtime}, "ffffffffffffffff", "09ffffffffffffff7f"},
		{"jiffies without a clock", Field{Size: 8, Kind: KindTime, Roles: RoleJiffies}, "0100000000000000", ""},
		{"number", Field{Number: 16, Size: 1, Kind: KindUint}, "01", "800101"},
		{"high number", Field{Number: MaxNumber, Size: 1, Kind: KindUint}, "01", "f8ffffff0f01"},
	}
	for _, test := range tests {
		test.field.Name = "a"
		s := oneValue(test.field)
		enc, dec := newCodec(t, s, s)
		value, _ := hex.DecodeString(test.value)
		wire := enc.AppendValue(nil, nil, value, nil)
		if got := hex.EncodeToString(wire); got != test.want {
			t.Errorf("encode %s %s: got %s, want %s", test.name, test.value, got, test.want)
			continue
		}
		got := make([]byte, len(value))
		if err := dec.Value(got, nil, wire, nil); err != nil {
			t.Errorf("decode %s: %v", test.name, err)
		}
		if again := enc.AppendValue(nil, nil, got, nil); !bytes.Equal(again, wire) {
			t.Errorf("encode %s again: want %x, got %x", test.name, wire, again)
		}
	}
}

// TestLongMessage checks messages whose length needs more than the one byte reserved for it.
func TestLongMessage(t *testing.T) {
	for _, size := range []int{125, 126, 127, 128, 16381, 16382, 16383, 16384, 70000} {
		inner := &Message{Size: size, Fields: []Field{{Name: "b", Number: 1, Size: size, Kind: KindBytes}}}
		s := oneValue(
			Field{Name: "one", Size: size, Kind: KindMessage, Message: inner},
			Field{Name: "two", Size: size, Count: 2, Kind: KindMessage, Message: inner},
			Field{Name: "three", Size: 1, Count: size, Kind: KindUint},
		)
		enc, dec := newCodec(t, s, s)
		value := make([]byte, s.Value.Size)
		for i := range value {
			value[i] = byte(i%250 + 1)
		}
		wire := enc.AppendValue(nil, nil, value, nil)
		got := make([]byte, len(value))
		if err := dec.Value(got, nil, wire, nil); err != nil || !bytes.Equal(got, value) {
			t.Errorf("round trip of %d bytes: error %v or another value", size, err)
		}
	}
}

func TestMalformed(t *testing.T) {
	inner := &Message{Size: 1, Fields: []Field{{Name: "x", Number: 1, Size: 1, Kind: KindUint}}}
	s := oneValue(
		Field{Name: "a", Size: 1, Kind: KindUint},
		Field{Name: "b", Size: 8, Kind: KindUint},
		Field{Name: "c", Size: 2, Kind: KindBytes},
		Field{Name: "d", Size: 1, Kind: KindMessage, Message: inner},
		Field{Name: "e", Size: 1, Count: 2, Kind: KindMessage, Message: inner},
		Field{Name: "f", Size: 2, Count: 2, Kind: KindUint},
		Field{Name: "g", Size: 4, Kind: KindFloat},
		Field{Name: "h", Size: 16, Kind: KindBytes},
		Field{Name: "i", Size: 4, Kind: KindIfname},
		Field{Name: "j", Size: 4, Kind: KindEnum, Enum: &Enum{}},
	)
	_, dec := newCodec(t, s, s)
	for name, text := range map[string]string{
		"zero":                     "0800",
		"long varint":              "088100",
		"longer varint":            "10ffffffffffffffff80808000",
		"varint without end":       "10ffffffffffffffffff",
		"varint beyond 64 bits":    "10ffffffffffffffffff02",
		"varint cut off":           "1080",
		"too large":                "088002",
		"tag cut off":              "08",
		"twice":                    "08010801",
		"order":                    "10010801",
		"unknown field":            "7801",
		"tag in long form":         "880001",
		"tag zero":                 "0001",
		"wrong wire type":          "0d01000000",
		"bytes with zero at end":   "1a020100",
		"bytes too long":           "1a03010101",
		"bytes cut off":            "1a0201",
		"empty bytes":              "1a00",
		"length beyond the end":    "1affffffffffffffffff01",
		"empty message":            "2200",
		"message longer than rest": "22030801",
		"field beyond its message": "22010801",
		"unknown field in message": "22021001",
		"empty element at end":     "2a0208012a00",
		"too many elements":        "2a0208012a0208012a020801",
		"packed with zero at end":  "32020100",
		"packed too many":          "3203010101",
		"packed element cut off":   "320180",
		"empty packed":             "3200",
		"float of zero":            "3d00000000",
		"float cut off":            "3d010000",
		"16 bytes cut off":         "4205010203",
		"17 bytes":                 "421101010101010101010101010101010101010101",
		"16 bytes, zero at end":    "42020100",
		"name with a zero":         "4a03650074",
		"name too long":            "4a1061616161616161616161616161616161",
		"enum beyond 32 bits":      "508080808010",
	} {
		wire, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := dec.Value(make([]byte, s.Value.Size), nil, wire, nil); !errors.Is(err, ErrMalformed) {
			t.Errorf("decode with %s: got %v, want ErrMalformed", name, err)
		}
	}
	if err := dec.Value(make([]byte, s.Value.Size), nil, []byte("\x4a\x04eth9"), nil); !errors.Is(err, ErrLink) {
		t.Errorf("decode unknown interface: got %v, want ErrLink", err)
	}
	if err := dec.Value(make([]byte, 3), nil, nil, nil); err == nil {
		t.Error("decode into 3 bytes: got no error, want an error")
	}
}

// TestInterfaceNames: names with control or format characters or with spaces are malformed when they arrive, and are not sent.
func TestInterfaceNames(t *testing.T) {
	s := oneValue(Field{Name: "dev", Size: 4, Kind: KindIfname})
	for name, valid := range map[string]bool{
		"eth0": true, "eth0.7@é": true, "e\x1b]0;": false, "e\n": false, "e\u202e": false, "e\u009b": false, "e 0": false, "e\xff": false,
	} {
		links := namedLink(name)
		enc, err := NewEncoder(s, links)
		if err != nil {
			t.Fatal(err)
		}
		dec, err := NewDecoder(s, s, links)
		if err != nil {
			t.Fatal(err)
		}
		value := []byte{1, 0, 0, 0}
		if _, err := enc.AppendNamedValue(nil, nil, value, nil); (err == nil) != valid {
			t.Errorf("encode %q: got error %v, want sent %t", name, err, valid)
		}
		wire := append([]byte{0x0a, byte(len(name))}, name...)
		if err := dec.Value(value, nil, wire, nil); errors.Is(err, ErrMalformed) == valid {
			t.Errorf("decode %q: got error %v, want valid %t", name, err, valid)
		}
	}
}

// namedLink is the name of interface 1.
type namedLink string

func (l namedLink) Name(uint32) (string, bool)       { return string(l), true }
func (l namedLink) Index(name string) (uint32, bool) { return 1, name == string(l) }

func TestPadding(t *testing.T) {
	s := oneValue(Field{Name: "a", Size: 1, Kind: KindUint})
	s.Key = &Message{Size: 21, Fields: []Field{
		{Name: "a", Number: 1, Size: 1, Kind: KindUint},
		{Name: "b", Number: 2, Offset: 4, Size: 8, Kind: KindUint},
		{Name: "c", Number: 3, Offset: 12, Size: 1, BitOffset: 2, BitSize: 3, Kind: KindUint},
	}}
	enc, _ := newCodec(t, s, s)
	covered := []byte{0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0b11100, 0, 0, 0, 0, 0, 0, 0, 0}
	for i := range 21 * 8 {
		key := make([]byte, 21)
		key[i/8] = 1 << (i % 8)
		out, err := enc.AppendKey([]byte("x"), key)
		if padding := covered[i/8]&key[i/8] == 0; padding != errors.Is(err, ErrPadding) || padding && string(out) != "x" {
			t.Errorf("encode key with bit %d: got %v, want ErrPadding for padding only", i, err)
		}
	}
	if _, err := enc.AppendKey(nil, make([]byte, 20)); err == nil {
		t.Error("encode key of 20 bytes: got no error, want an error")
	}
	s.Key.Fields[0].Kind = KindIfname
	enc, _ = newCodec(t, s, s)
	if _, err := enc.AppendKey(nil, append([]byte{99}, make([]byte, 20)...)); !errors.Is(err, ErrLink) {
		t.Errorf("encode key with an unknown interface: got %v, want ErrLink", err)
	}
}

func TestTimes(t *testing.T) {
	wall := Times{Ktime: 1e18, Boottime: 1e18 + 3e9, Jiffies: 1 << 33, JiffiesAt: 1e18 + 9e12, Tick: 4e6}
	ktime := clock{role: RoleKtime, size: 8}
	signed := clock{role: RoleBoottime, size: 8, signed: true}
	seconds := clock{role: RoleSeconds, size: 4}
	jiffies := clock{role: RoleJiffies, size: 8}
	short := clock{role: RoleJiffies, size: 4}
	coarseJiffies := clock{role: RoleJiffies256, size: 4}
	signedSeconds := clock{role: RoleSeconds, size: 4, signed: true}
	toWall := []struct {
		c    clock
		v    uint64
		want int64
	}{
		{ktime, 5, 1e18 + 5},
		{ktime, math.MaxUint64, forever},
		{ktime, math.MaxInt64, forever},
		{signed, math.MaxUint64 - 1, 1e18 + 3e9 - 2},
		{signed, math.MaxUint64, minusOne},
		{seconds, 60, 1e18 + 60e9},
		{seconds, math.MaxUint32, forever},
		{signedSeconds, math.MaxUint64, minusOne},
		{signedSeconds, math.MaxInt32, 1e18 + math.MaxInt32*1e9},
		{coarseJiffies, 1<<25 + 250, 1e18 + 9e12 + 256e9},
		{coarseJiffies, math.MaxUint32, forever},
		{clock{role: RoleJiffies256, size: 8}, 1 << 62, forever},
		{clock{role: RoleSeconds, size: 8}, 1 << 62, forever},
		{jiffies, 1<<33 + 250, 1e18 + 9e12 + 1e9},
		{jiffies, 1<<33 - 250, 1e18 + 9e12 - 1e9},
		{short, 250, 1e18 + 9e12 + 1e9},
		{short, math.MaxUint32, 1e18 + 9e12 - 4e6},
		{short, 1<<32 - 250, 1e18 + 9e12 - 1e9}, // before the counter wrapped
	}
	for _, test := range toWall {
		ns, ok := wall.toWall(test.c, test.v)
		if !ok || ns != test.want {
			t.Errorf("toWall %+v %d: got %d, want %d", test.c, test.v, ns, test.want)
		}
	}
	fromWall := []struct {
		c    clock
		ns   int64
		want uint64
	}{
		{ktime, 1e18 + 5, 5},
		{ktime, 1e18 - 5, 1}, // before boot
		{ktime, forever, math.MaxUint64},
		{ktime, 1e18, 1},
		{signed, 1e18 + 3e9 - 7, math.MaxUint64 - 6},
		{signed, forever, math.MaxInt64},
		{signed, minusOne, math.MaxUint64},
		{seconds, 1e18 + 60e9 + 499999999, 60},
		{seconds, 1e18 + 60e9 + 500000000, 61},
		{seconds, forever, math.MaxUint32},
		{seconds, minusOne, math.MaxUint32},
		{signedSeconds, minusOne, math.MaxUint64},
		{signedSeconds, forever, math.MaxInt32},
		{signedSeconds, 1e18 - 60e9, 1},
		{coarseJiffies, 1e18 + 9e12 + 256e9, 1<<25 + 250},
		{coarseJiffies, 1e18 + 9e12 + 256e9 + 509e6, 1<<25 + 250},
		{coarseJiffies, 1e18 + 9e12 + 256e9 + 512e6, 1<<25 + 251},
		{coarseJiffies, forever, math.MaxUint32},
		{seconds, 1e18 - 60e9, 1},
		{seconds, 9e18, math.MaxUint32}, // above the maximum of the field
		{jiffies, 1e18 + 9e12 + 1e9 + 1e6, 1<<33 + 250},
		{jiffies, 1e18 + 9e12 + 1e9 + 2e6, 1<<33 + 251},
		{jiffies, 1e18 + 9e12 - 1e9 - 2e6, 1<<33 - 251},
		{jiffies, minusOne + 1, 1},
		{jiffies, forever, math.MaxUint64},
		{short, 1e18 + 9e12 - 1e9, 1<<32 - 250},
		{short, 1e18 + 9e12, 1}, // 0 stands for never
	}
	for _, test := range fromWall {
		if v, ok := wall.fromWall(test.c, test.ns); !ok || v != test.want {
			t.Errorf("fromWall %+v %d: got %d, want %d", test.c, test.ns, v, test.want)
		}
	}
	if ns, _ := (&Times{Ktime: -5}).toWall(ktime, 5); ns != 1 {
		t.Errorf("toWall of Unix time 0: got %d, want 1", ns)
	}
	early := clock{role: RoleKtime, size: 8, signed: true}
	if ns, _ := (&Times{Ktime: -5}).toWall(early, 1<<63); ns != minusOne+1 {
		t.Errorf("toWall of a time before all others: got %d, want %d", ns, int64(minusOne+1))
	}
}

// TestTimesBetweenHosts checks that the time since an event is preserved between hosts. Their boot
// times differ by hours, and their wall clocks by one hour.
func TestTimesBetweenHosts(t *testing.T) {
	sender := Times{Ktime: 1e18, Boottime: 1e18, Jiffies: 1e9, JiffiesAt: 1e18 + 36e12, Tick: 1e6}
	here := Times{Ktime: 1e18 - 7e12, Boottime: 1e18 - 9e12, Jiffies: 7e9, JiffiesAt: 1e18 + 36e12, Tick: 4e6}
	const ahead = 3600e9 // lead of the sender's wall clock
	for _, role := range []Role{RoleKtime, RoleBoottime, RoleJiffies, RoleSeconds, RoleJiffies256} {
		s := oneValue(Field{Name: "seen", Size: 8, Kind: KindTime, Roles: role})
		enc, dec := newCodec(t, s, s)
		c := clockOf(&s.Value.Fields[0])
		idle := int64(1234e9)
		now := sender.JiffiesAt
		v, _ := sender.fromWall(c, now-idle)
		shifted := here.Shift(ahead)
		got := make([]byte, 8)
		wire := enc.AppendValue(nil, nil, unsafe.Slice((*byte)(unsafe.Pointer(&v)), 8), &sender)
		if err := dec.Value(got, nil, wire, &shifted); err != nil {
			t.Fatal(err)
		}
		l := accessorOf(&s.Value.Fields[0], 0)
		ns, _ := here.toWall(c, l.load(ptr(got)))
		most := int64(2e6)
		if role&(RoleSeconds|RoleJiffies256) != 0 {
			most = 640e6 // half a unit at each of the two nodes
		}
		if off := now - ahead - idle - ns; off > most || off < -most {
			t.Errorf("role %d: got a difference of %d ns, want at most %d", role, off, most)
		}
	}
}
