package schema

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

func TestParseSetting(t *testing.T) {
	for text, want := range map[string]Setting{
		"ct:last_used=ktime":   {Map: "ct", Field: "last_used", Roles: RoleKtime},
		"ct:nat.sport=be,port": {Map: "ct", Field: "nat.sport", Roles: RoleBE | RolePort},
		"a:b:key.saddr=ipv4":   {Map: "a:b", Field: "key.saddr", Roles: RoleIPv4},
		"ct:x=none":            {Map: "ct", Field: "x", Clear: true},
		"ct:x=number=7":        {Map: "ct", Field: "x", Number: 7},

		"ct:x=local,default=0xff,number=536870911":                                            {Map: "ct", Field: "x", Roles: RoleLocal, Default: "0xff", Number: 1<<29 - 1},
		"m:f=ktime,boottime,jiffies,seconds,ifindex,volatile,local,sum,be,ipv4,ipv6,mac,port": {Map: "m", Field: "f", Roles: 1<<13 - 1},
		"m:f=jiffies/256": {Map: "m", Field: "f", Roles: RoleJiffies256},
	} {
		if got, err := ParseSetting(text); err != nil || got != want {
			t.Errorf("parse %s: got %+v, error %v, want %+v and nil", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                         "want MAP:PATH=ROLE",
		"ct=ktime":                 "want MAP:PATH=ROLE",
		"ct:=ktime":                "want MAP:PATH=ROLE",
		":x=ktime":                 "want MAP:PATH=ROLE",
		"ct:x":                     "want MAP:PATH=ROLE",
		"ct:x=":                    `unknown role ""`,
		"ct:x=ktim":                `unknown role "ktim"`,
		"ct:x=ktime,":              `unknown role ""`,
		"ct:x=none,ktime":          `unknown role "none"`,
		"ct:x=number=0":            "not a valid protobuf field number",
		"ct:x=number=19000":        "not a valid protobuf field number",
		"ct:x=number=536870912":    "not a valid protobuf field number",
		"ct:x=number=a":            "not a valid protobuf field number",
		"ct:x=number=1,number=2":   "contradict each other",
		"ct:x=default=":            `unknown role "default="`,
		"ct:x=default=1,default=2": "contradict each other",
		"ct:x=ktime=5":             `unknown role "ktime=5"`,
	} {
		if got, err := ParseSetting(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse %s: want an error with %q, got %+v, %v", text, want, got, err)
		}
	}
}

// settings parses each text.
func settings(t testing.TB, texts ...string) (all []Setting) {
	t.Helper()
	for _, text := range texts {
		set, err := ParseSetting(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, set)
	}
	return all
}

func TestApply(t *testing.T) {
	for _, c := range []struct{ setting, line string }{
		{"kinds:u64=ktime,volatile", "u64 10 @0 8 time ktime,volatile"},
		{"kinds:s64=boottime", "s64 11 @0 8 time signed boottime"},
		{"kinds:value.u32=seconds", "u32 8 @0 4 time seconds"},
		{"kinds:u64=jiffies", "u64 10 @0 8 time jiffies"},
		{"kinds:u32=jiffies/256", "u32 8 @0 4 time jiffies/256"},
		{"kinds:s32=ifindex", "s32 9 @0 4 ifname ifindex"},
		{"kinds:u16=be,port", "u16 6 @0 2 uint be,port"},
		{"kinds:u32=ipv4", "u32 8 @0 4 uint be,ipv4"},
		{"kinds:cube=ipv4", "cube 24 @0 4 uint *24 be,ipv4"},
		{"kinds:u128=ipv6", "u128 12 @0 16 bytes ipv6"},
		{"kinds:s128=ipv6", "s128 13 @0 16 bytes *2 ipv6"},
		{"kinds:matrix=mac", "matrix 22 @0 6 bytes mac"},
		{"kinds:ports=port", "ports 25 @0 2 uint *4 be,port"},
		{"kinds:named=local,number=99", "named 99 @0 1 message local"},
		{"kinds:timer=local", "timer 1 @0 16 none local"},
		{"kinds:grid.x=volatile", "x 1 @0 4 uint volatile"},
		{"kinds:key.key=be", "key 1 @0 4 uint be"},
		// Roles of tags are removed, roles of types remain.
		{"roles:ktime=volatile", "ktime 1 @0 8 uint volatile"},
		{"roles:ktime=none", "ktime 1 @0 8 uint"},
		{"roles:seconds=none", "seconds 5 @0 8 uint *2"},
		{"roles:ifindex=none", "ifindex 7 @0 2 uint"},
		{"roles:pinned=volatile", "pinned 70 @0 8 uint volatile"},
		{"roles:pinned=number=71", "pinned 71 @0 8 uint"},
		{"roles:pinned=none", "pinned 13 @0 8 uint"},
		{"roles:local_default=none", "local_default 10 @0 4 sint"},
		{"roles:key.v6=none", "v6 3 @0 8 uint *2"},
		{"roles:key.v4=none", "v4 1 @0 4 uint"},
		{"roles:key.mac=none", "mac 4 @0 2 uint *3"},
		{"ct:key.sport=none", "sport 3 @0 2 uint be"},
		{"ct:nat_act.xip=none", "xip 1 @0 4 uint *4 be"},
		{"ct:nat_act=none", "nat_act 13 @0 48 message"},
		{"flow:end=none", "end 2 @0 8 uint"},
		{"flow:flags=sum", "flags 5 @0 2 uint sum"},
		{"flow:bytes=none", "bytes 3 @0 8 uint"},
		{"opaque:bytes=local", "bytes 1 @0 20 bytes local"},
	} {
		set := settings(t, c.setting)
		s := layout(t, set[0].Map)
		if err := s.Apply(set); err != nil {
			t.Error(err)
			continue
		}
		f, _, err := s.find(set[0].Field)
		if err != nil {
			t.Error(err)
			continue
		}
		one := *f
		one.Message, one.Offset = nil, 0
		if got := lines(&Message{Fields: []Field{one}}, "")[0]; got != c.line {
			t.Errorf("apply %s: got %q, want %q", c.setting, got, c.line)
		}
		if err := s.Check(); err != nil {
			t.Errorf("check schema after %s: %v", c.setting, err)
		}
	}
}

func TestApplyRefuses(t *testing.T) {
	for setting, want := range map[string]string{
		"kinds:u32=ktime":              `map "kinds": field u32 of type __u32 cannot have role ktime: it needs an 8-byte integer`,
		"kinds:b=volatile,seconds":     "cannot have role seconds",
		"kinds:f=jiffies":              "cannot have role jiffies",
		"kinds:u16=seconds":            "cannot have role seconds",
		"kinds:u8=ifindex":             "cannot have role ifindex",
		"kinds:s32=be":                 "an unsigned 2, 4 or 8-byte integer",
		"kinds:u8=be":                  "cannot have role be",
		"kinds:s32=ipv4":               "cannot have role ipv4",
		"kinds:u64=ipv6":               "cannot have role ipv6",
		"kinds:u64=mac":                "cannot have role mac",
		"kinds:bools=mac":              "cannot have role mac",
		"kinds:u32=port":               "cannot have role port",
		"kinds:grid=ktime":             "cannot have role ktime",
		"kinds:timer=volatile":         "it needs a field that is sent",
		"kinds:timer=local,default=00": "cannot have a default",
		"kinds:task=be":                "cannot have role be",
		"kinds:ports=seconds":          "cannot have roles seconds,be at once",
		"kinds:v4=ktime":               "at once",
		"kinds:u64=ktime,boottime":     "cannot have roles ktime,boottime at once",
		"kinds:u32=seconds,ifindex":    "cannot have roles seconds,ifindex at once",
		"kinds:u64=sum":                "field u64 of type __u64 cannot have role sum: it needs a per-CPU map",
		"kinds:u8=default=1":           "has a default but is not local",
		"kinds:u8=number=3":            "fields u8 and s8 of the same number 3",
		"flow:start=sum,ktime":         "at once",
		"flags:rx_closing=be":          "cannot have role be",
		"flags:nat.rest=ktime":         "cannot have role ktime",
		"roles:key.v4=volatile":        "cannot have role volatile in a key",
		"roles:key.order=ktime":        "cannot have role ktime in a key",
		"roles:key.v4=local":           "cannot have role local in a key",
		"kinds:last_usd=volatile":      `unknown field "last_usd"; similar fields: last`,
		"kinds:flexible=volatile":      `unknown field "flexible"`,
		"kinds:u64.x=volatile":         `unknown field "u64.x"; similar fields: `,
		"ct:sport=be":                  `unknown field "sport"; similar fields: key.sport`,
		"ct:nat.xport=be":              "nat_act.xport",
		"ct:pseq=volatile":             "similar fields: pi.tcp_cts.pseq",
		"ct:xprt=volatile":             "similar fields: nat_act.xport",
		"flow:cpu.start=none":          `unknown field "cpu.start"`,
	} {
		set := settings(t, setting)
		if err := layout(t, set[0].Map).Apply(set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("apply %s: want an error with %q, got %v", setting, want, err)
		}
	}
	if err := layout(t, "ct").Apply(settings(t, "ct:ito=seconds", "ct:value.ito=volatile")); err == nil || !strings.Contains(err.Error(), "set twice") {
		t.Errorf("apply two settings of one field: got %v, want an error", err)
	}
}

// TestApplySeveral checks that Apply ignores the settings of other maps and applies several
// settings together, and that the next Apply can revert a setting.
func TestApplySeveral(t *testing.T) {
	s := layout(t, "ct")
	before := lines(s.Value, "")
	if err := s.Apply(settings(t, "other:nothing=ktime", "ct:ito=seconds", "ct:rid=number=7", "ct:aid=number=6")); err != nil {
		t.Fatal(err)
	}
	after := lines(s.Value, "")
	for _, want := range []string{"rid 7 @12 2 uint", "aid 6 @14 2 uint", "ito 11 @72 8 time seconds"} {
		if !slices.Contains(after, want) {
			t.Errorf("fields after Apply: want %q in %q", want, after)
		}
	}
	if err := s.Apply(settings(t, "ct:ito=none", "ct:rid=none", "ct:aid=none")); err != nil {
		t.Fatal(err)
	}
	if got := lines(s.Value, ""); !slices.Equal(got, before) {
		t.Errorf("fields after settings with none: got %q, want the original fields", got)
	}
}

func TestDefaults(t *testing.T) {
	for setting, want := range map[string]string{
		"kinds:u8=local,default=255":              "\xff",
		"kinds:s8=local,default=-128":             "\x80",
		"kinds:s8=local,default=0xff":             "\xff",
		"kinds:b=local,default=1":                 "\x01",
		"kinds:u16=local,be,default=0x0102":       "\x01\x02",
		"kinds:u16=local,default=010":             "\x0a\x00",
		"kinds:u64=local,ktime,default=1":         "\x01\x00\x00\x00\x00\x00\x00\x00",
		"kinds:e=local,default=2":                 "\x02\x00\x00\x00",
		"kinds:f=local,default=0000803f":          "\x00\x00\x80\x3f",
		"kinds:matrix=local,default=010203040506": "\x01\x02\x03\x04\x05\x06",
		"kinds:bools=local,default=0x010001":      "\x01\x00\x01",
		"kinds:named=local,default=07":            "\x07",
		"flags:tx_closing=local,default=1":        "\x02",
		"flags:reserved=local,default=0xabc":      "\xc0\xab",
		"flags:nat.quota=local,default=-2":        "\xfe\xff\x0f",
		"flags:nat.dir=local,default=5":           "\x50",
		"flags:nat.rest=local,default=1":          "\x01\x00\x00",
		"flow:packets=local,default=9":            "\x09\x00\x00\x00",
	} {
		set := settings(t, setting)
		s := layout(t, set[0].Map)
		if err := s.Apply(set); err != nil {
			t.Error(err)
			continue
		}
		if f, _, _ := s.find(set[0].Field); string(f.Default) != want || len(want) != f.Bytes() {
			t.Errorf("default of %s: got %x, want %x", setting, f.Default, want)
		}
	}
	for _, setting := range []string{
		"kinds:u8=local,default=256", "kinds:u8=local,default=-1", "kinds:s8=local,default=128", "kinds:s8=local,default=-129",
		"kinds:b=local,default=2", "kinds:u8=local,default=x", "kinds:u8=local,default=0x100", "kinds:matrix=local,default=01",
		"kinds:matrix=local,default=0102030405060", "kinds:f=local,default=1.5", "flags:tx_closing=local,default=2",
		"flags:nat.quota=local,default=-524289", "kinds:e=local,default=-1",
	} {
		set := settings(t, setting)
		if err := layout(t, set[0].Map).Apply(set); err == nil || !strings.Contains(err.Error(), "cannot have default") {
			t.Errorf("apply %s: got %v, want an error", setting, err)
		}
	}
}

// TestWideBitfieldDefault checks a bitfield that begins late in its byte and touches nine bytes.
func TestWideBitfieldDefault(t *testing.T) {
	v := structOf("v", 16, btf.Member{
		Name: "wide", Offset: 6, BitfieldSize: 64, Type: u64, Tags: []string{"mapsync:local,default=0x8000000000000001"},
	})
	s, err := FromTypes("m", u32, v)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(s.Value.Fields[0].Default); got != "\x40\x00\x00\x00\x00\x00\x00\x00\x20" {
		t.Errorf("default: got %x, want %x", got, "\x40\x00\x00\x00\x00\x00\x00\x00\x20")
	}
}

// TestTagsAreCombined checks that the tags of a type and of a member are combined. The tags of a union
// and of its selected member are combined too.
func TestTagsAreCombined(t *testing.T) {
	stamp := &btf.Typedef{Name: "stamp", Type: u64, Tags: []string{"mapsync:ktime", "not:ours"}}
	u := &btf.Union{Size: 8, Members: []btf.Member{
		{Name: "a", Type: stamp, Tags: []string{"mapsync:volatile"}}, member("b", 0, u64),
	}}
	inner := structOf("inner", 4, member("x", 0, u32))
	inner.Tags = []string{"mapsync:volatile"}
	v := structOf("v", 24,
		btf.Member{Name: "at", Type: stamp, Tags: []string{"mapsync:volatile", "mapsync:number=9"}},
		btf.Member{Name: "u", Offset: 64, Type: u, Tags: []string{"mapsync:number=8"}},
		member("in", 128, inner),
	)
	s, err := FromTypes("m", u32, v)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, s.Value, "v", 24, `
at 9 @0 8 time ktime,volatile
u 8 @8 8 time ktime,volatile
in 3 @16 4 message volatile
  x 1 @0 4 uint`)
}

// TestApplyWithoutTypes checks that roles can be applied to a schema without BTF, and removed
// again.
func TestApplyWithoutTypes(t *testing.T) {
	s := &Schema{
		Map: "m", Key: &Message{Name: "k", Size: 8, Fields: []Field{{Name: "id", Number: 1, Size: 8, Kind: KindUint}}},
		Value: &Message{Name: "v", Size: 8, Fields: []Field{{Name: "at", Number: 1, Size: 8, Kind: KindUint}}},
	}
	for setting, want := range map[string]string{"m:at=ktime": "at 1 @0 8 time ktime", "m:at=none": "at 1 @0 8 uint"} {
		if err := s.Apply(settings(t, setting)); err != nil {
			t.Fatal(err)
		}
		expect(t, s.Value, "v", 8, want)
	}
}

// TestVolatileBits: the volatile bits of a number are no difference, and the others are.
func TestVolatileBits(t *testing.T) {
	s := FromSizes("m", 4, 12)
	if err := s.Apply(settings(t, "m:@0:8=volatile=0xffffffffffffffc0", "m:@8:2=volatile=0x8000")); err != nil {
		t.Fatal(err)
	}
	want := "\x3f\x00\x00\x00\x00\x00\x00\x00\xff\x7f\xff\xff"
	for name, mask := range map[string][]byte{"significant": s.Significant(), "compared": s.Compared()} {
		if string(mask) != want {
			t.Errorf("%s bits: got %x, want %x", name, mask, want)
		}
	}
	for setting, want := range map[string]string{
		"m:@0:2=volatile=0x10000": "cannot have volatile=0x10000", "m:@0:2=be,volatile=1": "cannot have volatile=0x1",
		"m:@0:3=volatile=1": "cannot have volatile=0x1",
	} {
		if err := FromSizes("m", 4, 12).Apply(settings(t, setting)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("apply %s: got error %v, want one with %q", setting, err, want)
		}
	}
	for _, text := range []string{"m:a=volatile=", "m:a=volatile=0", "m:a=volatile=x"} {
		if _, err := ParseSetting(text); err == nil {
			t.Errorf("parse %s: got no error, want one", text)
		}
	}
}
