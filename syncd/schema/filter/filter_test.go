package filter

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/schema/schematest"
)

func TestFilterMatch(t *testing.T) {
	s := schematest.Conntrack()
	key, value := schematest.Entry()
	for _, test := range []struct {
		expr string
		want bool
	}{
		{"sport=443", true},
		{"sport=0x1bb", true},
		{" sport = 443 ", true},
		{"sport!=443", false},
		{"key.sport>442", true},
		{"sport>=444", false},
		{"sport<=443", true},
		{"sport<443", false}, // in little-endian order it would be 47873, and so would the limit
		{"vip=192.0.2.0/24", true},
		{"vip!=192.0.2.0/24", false},
		{"vip=192.0.3.0/24", false},
		{"saddr=10.0.0.1", true},
		{"saddr=10.9.9.9/8", true},
		{"saddr=11.0.0.0/8", false},
		{"saddr=fd00::/8", false},
		{"nat.daddr=fd00::/8", true},
		{"nat.daddr=fd00::1", true},
		{"nat.daddr=253.0.0.0", false}, // not only its first 4 bytes are not zero
		{"reply_nat.daddr=::", true},
		{"servers=10.0.0.3", true},
		{"servers=10.0.0.4", false},
		{"servers!=10.0.0.4", true},
		{"servers!=10.0.0.3", false},
		{"proto=TCP", true},
		{"proto=6", true},
		{"proto=UDP", false},
		{"state=CT_ESTABLISHED", true}, // an alias of CT_OPEN
		{"state!=CT_CLOSED", true},
		{"state=-1", false},
		{"verdict=DROP", true},
		{"verdict=0xffffffff", true},
		{"features=F_TOP", true},
		{"key.zone=7", true},
		{"value.zone=4", true},
		{"syn=1", true},
		{"level=-3", true},
		{"level<-3", false},
		{"level>-16", true},
		{"nat.dport=8080", true},
		{"value.nat.dport=8081", false},
		{"packets>9007199254740992", true},
		{"packets>9007199254740993", false},
		{"drift<0", true},
		{"alive=true", true},
		{"alive!=true", false},
		{"mac=02:00:00:00:00:aa", true},
		{"mac=02:00:00:00:00:ab", false},
		{`comm=a"b`, true},
		{"comm=0x612262", true},
		{"comm=a", false},
		{"comm!=", true},
		{"load=1.5", true},
		{"load>1.5", false},
		{"load>NaN", false},
		{"ports=443", true},
		{"ports=80", true},
		{"ports=81", false},
		{"ports>443", false},
		{"hops.cost=-1", true},
		{"hops.cost=5", false},
		{"hops.dev=7", false},
		{"hops.dev=eth9", true},
		{"dev=eth0", true},
		{"dev=eth1", false},
		{"dev=2", true},
		{"blob=dead", true},
		{"blob=0xdead000000000000", true},
		{"blob=de", false},
		{"last_seen=2026-01-01T00:00:05Z", true},
		{"last_seen>2026-01-01T01:00:05+01:00", false},
		{"last_seen<2026-01-01T00:00:05.1Z", true},
		{"last_seen=0", false},
		{"expires>2026-01-01T00:00:05Z", true},
		{"shard=3", true},
	} {
		f, err := Parse(s, test.expr)
		if err != nil {
			t.Error(err)
			continue
		}
		f.Links = schematest.Links{2: "eth0", 9: "eth9"}
		if got := f.Match(key, value, schematest.Boot); got != test.want {
			t.Errorf("match %s: got %t, want %t", test.expr, got, test.want)
		}
		if allocs := testing.AllocsPerRun(10, func() { f.Match(key, value, schematest.Boot) }); allocs > 0 {
			t.Errorf("match %s: got %g allocations, want 0", test.expr, allocs)
		}
		if f.Match(key[:31], value[:175], schematest.Boot) {
			t.Errorf("match %s with a short entry: got true, want false", test.expr)
		}
	}
}

// TestFilterMappedAddress checks that an IPv4 prefix matches both forms of an IPv4 address in 16
// bytes.
func TestFilterMappedAddress(t *testing.T) {
	f, err := Parse(schematest.Conntrack(), "saddr=10.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		key  []byte
		want bool
	}{
		{[]byte{10: 0xff, 11: 0xff, 12: 10, 13: 1, 31: 0}, true},
		{[]byte{10: 0xff, 11: 0xff, 12: 11, 13: 1, 31: 0}, false},
		{[]byte{12: 10, 13: 1, 31: 0}, false},
		{[]byte{0: 10, 3: 1, 31: 0}, true},
		{[]byte{0: 10, 3: 1, 15: 1, 31: 0}, false},
	} {
		if got := f.Match(test.key, nil, nil); got != test.want {
			t.Errorf("match %v: got %t, want %t", test.key[:16], got, test.want)
		}
	}
}

// TestFilterWithoutClockOrLinks checks that unknown times have no order, and that unknown
// interfaces have no name.
func TestFilterWithoutClockOrLinks(t *testing.T) {
	s := schematest.Conntrack()
	key, value := schematest.Entry()
	for _, expr := range []string{"last_seen<2027-01-01T00:00:00Z", "last_seen>2020-01-01T00:00:00Z", "dev=eth0"} {
		f, err := Parse(s, expr)
		if err != nil {
			t.Fatal(err)
		}
		if f.Match(key, value, nil) {
			t.Errorf("match %s without clock and links: got true, want false", expr)
		}
	}
	binary.LittleEndian.PutUint64(value[32:], 0)
	f, err := Parse(s, "last_seen<"+time.Now().UTC().Format(time.RFC3339))
	if err != nil {
		t.Fatal(err)
	}
	if f.Match(key, value, schematest.Boot) {
		t.Error("match of an unset time before now: got true, want false")
	}
}

func TestFilterPerCPU(t *testing.T) {
	value := []byte{16: 5, 56: 1, 57: 0xbb, 63: 0}
	for expr, want := range map[string]bool{
		"packets=5": true, "cpu.packets=5": true, "value.packets=6": false, "packets!=5": false, "port=443": true, "key=0": true,
	} {
		f, err := Parse(schematest.PerCPU(), expr)
		if err != nil {
			t.Error(err)
		} else if got := f.Match(make([]byte, 4), value, nil); got != want {
			t.Errorf("match %s: got %t, want %t", expr, got, want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for expr, want := range map[string]string{
		"sport":                          "has no operator",
		"sport!443":                      "has no operator",
		"spart=443":                      `unknown field "spart"; fields of this map: key.saddr, key.vip, key.sport,`,
		"=443":                           `unknown field ""`,
		"sport.x=443":                    "unknown field",
		"zone=3":                         "write key.zone or value.zone",
		"nat=3":                          "field nat is a struct: choose one of nat.daddr, nat.dport",
		"value.nat=3":                    "field nat is a struct",
		"lock=1":                         "field lock (struct bpf_spin_lock) cannot be read",
		"sport=http":                     "field sport (__be16) is compared with a number from 0 to 65535",
		"sport=65536":                    "a number from 0 to 65535",
		"sport==443":                     "a number from 0 to 65535",
		"sport=-1":                       "a number from 0 to 65535",
		"syn=2":                          "a number from 0 to 1",
		"level=16":                       "a number from -16 to 15",
		"level=-17":                      "a number from -16 to 15",
		"packets=1e3":                    "a number from 0 to 18446744073709551615",
		"proto=SCTP":                     "field proto (ip_proto) is compared with one of IP, TCP, UDP, or a number from 0 to 255",
		"state=3000000000":               "a number from -2147483648 to 2147483647",
		"state>CT_NEW":                   "field state (enum ct_state) has no order: use = or !=",
		"vip=fd00::1":                    "an IPv4 address or prefix",
		"vip=lb.example":                 "an IPv4 address or prefix",
		"vip<10.0.0.1":                   "has no order",
		"saddr=10.0.0.0/33":              "an address or prefix, as 10.0.0.0/8 or fd00::/64",
		"mac=02:00":                      "a MAC address, as 02:00:00:00:00:01",
		"alive=perhaps":                  "true or false",
		"load=much":                      "a number",
		"blob=0g":                        "up to 8 bytes in hex",
		"blob=000000000000000000":        "at most 8 bytes",
		"comm=12345678901234567":         "at most 16 bytes",
		"last_seen=yesterday":            "a time, as 2026-01-31T15:04:05Z, or 0 for none",
		"last_seen=9999-01-31T15:04:05Z": "a time, as",
	} {
		_, err := Parse(schematest.Conntrack(), expr)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse %s: got %v, want an error with %q", expr, err, want)
		}
	}
}
