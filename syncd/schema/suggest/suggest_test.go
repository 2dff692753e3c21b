package suggest

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/schema"

	"github.com/cilium/ebpf/btf"
)

// host is a node with an uptime of 10 days.
var host = &Host{
	Ktime: int64(240 * time.Hour), Boottime: int64(241 * time.Hour), Jiffies: 1<<32 - 75000 + 240*3600*250, Tick: 4 * time.Millisecond,
	Interfaces: map[uint64]bool{1: true, 2: true, 7: true}, Namespaces: func() map[uint64]bool { return map[uint64]bool{4026531840: true} },
}

// value describes a field of the value by its C type, and its content in entry i.
type value struct {
	name string
	size uint32
	of   func(i int) uint64
}

// sampleOf returns a sample of n entries with these values.
func sampleOf(t *testing.T, n int, settings string, fields ...value) *Sample {
	t.Helper()
	v := &btf.Struct{Name: "v"}
	for _, f := range fields {
		name := fmt.Sprintf("__u%d", f.size*8)
		v.Members = append(v.Members, btf.Member{Name: f.name, Type: &btf.Int{Name: name, Size: f.size}, Offset: btf.Bits(v.Size * 8)})
		v.Size += f.size
	}
	s, err := schema.FromTypes("m", &btf.Int{Name: "__u32", Size: 4}, v)
	if err != nil {
		t.Fatal(err)
	}
	return fill(t, s, n, settings, func(i int, b []byte) {
		for _, f := range fields {
			var word [8]byte
			binary.LittleEndian.PutUint64(word[:], f.of(i))
			copy(b, word[:f.size])
			b = b[f.size:]
		}
	})
}

func fill(t *testing.T, s *schema.Schema, n int, settings string, set func(i int, value []byte)) *Sample {
	t.Helper()
	var list []schema.Setting
	for text := range strings.FieldsSeq(settings) {
		one, err := schema.ParseSetting(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, one)
	}
	if err := s.Apply(list); err != nil {
		t.Fatal(err)
	}
	sample := NewSample(s, host)
	key, b := make([]byte, s.Key.Size), make([]byte, s.Value.Size)
	for i := range n {
		set(i, b)
		sample.Add(key, b)
	}
	return sample
}

// texts returns the suggestions as text, without those for addresses.
func texts(s *Sample) (list []string) {
	for _, x := range s.Suggestions() {
		if x.Display {
			continue
		}
		text := x.Field + "=" + x.Roles
		if x.Weak {
			text += " weak"
		}
		if x.Wrong {
			text += " wrong"
		}
		list = append(list, text)
	}
	return list
}

func ago(d time.Duration) func(i int) uint64 {
	return func(i int) uint64 { return uint64(host.Ktime - int64(d) - int64(i)*1e6) }
}

// in divides the values of another field.
func in(unit time.Duration, of func(i int) uint64) func(i int) uint64 {
	return func(i int) uint64 { return of(i*3000) / uint64(unit) }
}

func constant(v uint64) func(int) uint64 { return func(int) uint64 { return v } }

func count(i int) uint64 { return uint64(i) * 1500 }

func TestSuggestions(t *testing.T) {
	jiffies := func(i int) uint64 { return host.Jiffies - uint64(i)*250 }
	for _, test := range []struct {
		name     string
		entries  int
		settings string
		field    value
		want     string
	}{
		{"last use", 200, "", value{"last_seen", 8, ago(time.Hour)}, "last_seen=ktime,volatile"},
		{"expiry", 200, "", value{"expires", 8, ago(-time.Hour)}, "expires=ktime"},
		{"seconds", 200, "", value{"lifetime", 4, in(time.Second, ago(0))}, "lifetime=seconds"},
		{"jiffies", 200, "", value{"created", 8, jiffies}, "created=jiffies"},
		{"jiffies in 4 bytes", 200, "", value{"created", 4, jiffies}, "created=jiffies"},
		{"jiffies / 256", 400, "", value{"last_used", 4, func(i int) uint64 { return jiffies(i*2) / 256 }}, "last_used=jiffies/256,volatile"},
		{"boottime", 200, "", value{"boot_ts", 8, ago(0)}, "boot_ts=boottime,volatile"},
		{"beyond a week", 200, "", value{"boot_ts", 8, ago(-8 * 24 * time.Hour)}, ""},
		{"a vague name", 200, "", value{"time", 8, ago(time.Hour)}, "time=ktime,volatile"},
		{"interface", 200, "", value{"oif", 4, func(i int) uint64 { return []uint64{1, 2, 7, 0}[i%4] }}, "oif=ifindex"},
		{"interface of another node", 200, "", value{"oif", 4, constant(3)}, ""},
		{"namespace", 200, "", value{"netns", 4, constant(4026531840)}, "netns=local"},
		{"bit of a namespace", 200, "", value{"netns_cookie", 4, func(i int) uint64 { return uint64(i % 2) }}, ""},
		{"few entries", 20, "", value{"last_seen", 8, ago(time.Hour)}, "last_seen=ktime,volatile weak"},
		{"few of other values", 20, "", value{"last_seen", 8, count}, ""},
		{"no entries", 0, "", value{"last_seen", 8, nil}, "last_seen=ktime,volatile weak"},
		{"no entries, 4 bytes", 0, "", value{"expires", 4, nil}, "expires=seconds weak"},
		{"no entries, interface", 0, "", value{"ifindex", 4, nil}, "ifindex=ifindex weak"},
		{"no entries, a vague name", 0, "", value{"time", 8, nil}, ""},
		{"zeros", 200, "", value{"last_seen", 8, constant(0)}, ""},
		{"all ones", 200, "", value{"last_seen", 8, constant(1<<64 - 1)}, ""},
		{"one in ten differs", 200, "", value{"last_seen", 8, func(i int) uint64 { return ago(time.Hour)(i) * uint64(min(i%10, 1)*1000+1) }}, ""},
		{"one in fifty differs", 200, "", value{"last_seen", 8, func(i int) uint64 {
			if i%50 == 0 {
				return 12
			}
			return ago(time.Hour)(i)
		}}, "last_seen=ktime,volatile"},

		{"silenced", 200, "m:last_seen=none", value{"last_seen", 8, ago(time.Hour)}, ""},
		{"with its role", 200, "m:last_seen=ktime", value{"last_seen", 8, ago(time.Hour)}, ""},
		{"volatile alone", 200, "m:last_seen=volatile", value{"last_seen", 8, ago(time.Hour)}, "last_seen=ktime,volatile"},
		{"local", 200, "m:last_seen=local", value{"last_seen", 8, ago(time.Hour)}, ""},

		{"nanoseconds as seconds", 200, "m:at=seconds", value{"at", 8, ago(time.Hour)}, "at=ktime wrong"},
		{"seconds as nanoseconds", 200, "m:at=ktime", value{"at", 8, in(time.Second, ago(0))}, "at=seconds wrong"},
		{"seconds as jiffies / 256", 200, "m:at=jiffies/256", value{"at", 4, in(time.Second, ago(0))}, "at=seconds wrong"},
		{"a hash as seconds", 200, "m:at=seconds", value{"at", 8, func(i int) uint64 { return uint64(i+1) * 0x9e3779b97f4a7c15 >> 1 }}, "at=none wrong"},
		{"a future on purpose", 200, "m:at=ktime", value{"at", 8, ago(-300 * 24 * time.Hour)}, ""},
		{"never", 200, "m:at=seconds", value{"at", 4, constant(1<<32 - 1)}, ""},
		{"soon after boot", 200, "m:at=ktime", value{"at", 8, func(i int) uint64 { return uint64(i+1) * 1e9 }}, ""},

		// Fields of ordinary maps.
		{"bytes", 200, "", value{"last_rx_bytes", 8, count}, ""},
		{"timeout", 200, "", value{"timeout", 4, constant(216000)}, ""},
		{"duration under a name of a time", 200, "", value{"lifetime", 4, func(i int) uint64 { return []uint64{21600, 60, 10}[i%3] }}, ""},
		{"durations", 200, "", value{"ito", 8, constant(30e9)}, ""},
		{"count", 200, "", value{"count", 4, count}, ""},
		{"cookie", 200, "", value{"cookie", 8, func(i int) uint64 { return uint64(i) * 0x9e3779b97f4a7c15 }}, ""},
		{"TTL", 0, "", value{"ttl", 1, nil}, ""},
		{"no entries, timeout", 0, "", value{"timeout", 4, nil}, ""},
		{"no entries, cookie", 0, "", value{"cookie", 8, nil}, ""},
		{"Unix time", 200, "", value{"created", 8, func(i int) uint64 { return 1795000000 - uint64(i) }}, ""},
	} {
		sample := sampleOf(t, test.entries, test.settings, test.field)
		if got := strings.Join(texts(sample), "; "); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// TestSuggestionsWithoutTypes checks that times are found in bytes, as there are no names.
func TestSuggestionsWithoutTypes(t *testing.T) {
	s := schema.FromSizes("flows", 12, 45)
	sample := fill(t, s, 200, "flows:@0:4=volatile", func(i int, b []byte) {
		binary.LittleEndian.PutUint64(b[8:], count(i))
		binary.LittleEndian.PutUint64(b[32:], ago(time.Minute)(i))
	})
	if got := texts(sample); len(got) != 1 || got[0] != "@32:8=ktime" {
		t.Errorf("suggestions: got %q, want one for @32:8", got)
	}
	const want = "200 of 200 values are times of bpf_ktime_get_ns"
	if reason := sample.Suggestions()[0].Reason; reason != want {
		t.Errorf("reason: got %q, want %q", reason, want)
	}
}

// TestSuggestionsOfAddresses checks the roles for display.
func TestSuggestionsOfAddresses(t *testing.T) {
	sample := sampleOf(t, 0, "", value{"saddr", 4, nil}, value{"sport", 2, nil}, value{"rip", 4, nil}, value{"mask", 4, nil}, value{"xip", 8, nil})
	var got []string
	for _, x := range sample.Suggestions() {
		if !x.Display {
			t.Errorf("suggestion %+v: want one for display", x)
		}
		got = append(got, x.Field+"="+x.Roles)
	}
	if want := "saddr=ipv4 sport=port rip=ipv4"; strings.Join(got, " ") != want {
		t.Errorf("suggestions: got %q, want %s", got, want)
	}
}

func TestWords(t *testing.T) {
	for name, want := range map[string]string{
		"last_seen": "last seen", "lastSeen": "last seen", "LTS": "lts", "__pad": "pad", "if_index_first": "if index first", "": "", "rxTS": "rx ts",
	} {
		if got := strings.Join(words(name), " "); got != want {
			t.Errorf("words of %s: got %q, want %q", name, got, want)
		}
	}
}
