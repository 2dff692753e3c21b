package export_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"testing"

	"mapsync/printable"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/schema/schematest"
)

const entryText = `{state=CT_OPEN syn=1 level=-3 nat{daddr=fd00::1 dport=8080} ` +
	`last_seen=2026-01-01T00:00:05Z packets=9007199254740993 drift=-1 alive=true mac=02:00:00:00:00:aa comm="a\"b" load=1.5 ` +
	`ports=[80 0 443] features=F_TOP hops=[{cost=-1} {dev=9}] verdict=DROP blob=dead000000000000 ` +
	`expires=2026-01-01T00:00:06Z servers=[10.0.0.2 10.0.0.3] zone=4}`

func TestPrinterText(t *testing.T) {
	p := export.NewPrinter(schematest.Conntrack(), schematest.Links{2: "eth0"})
	key, value := schematest.Entry()
	equal(t, "key", string(p.AppendKey([]byte("> "), key)), `> {saddr=10.0.0.1 vip=192.0.2.1 sport=443 proto=TCP zone=7 dev=eth0}`)
	equal(t, "value", string(p.AppendValue(nil, nil, value, schematest.Boot)), entryText)
	equal(t, "zero value", string(p.AppendValue(nil, nil, make([]byte, 176), schematest.Boot)), `{}`)
	equal(t, "short key", string(p.AppendKey(nil, key[:3])), `0a0000`)

	clear(value)
	value[3], value[32], value[61], value[104] = 0xff, 9, 7, 3
	equal(t, "no clock", string(p.AppendValue(nil, nil, value, nil)), `{last_seen=9 comm=0007}`)
	p.All = true
	equal(t, "all", string(p.AppendValue(nil, nil, value, nil)), `{lock=000000ff last_seen=9 comm=0007 shard=3}`)
}

func TestPrinterJSON(t *testing.T) {
	p := export.NewPrinter(schematest.Conntrack(), schematest.Links{2: "eth0"})
	key, value := schematest.Entry()
	equal(t, "key", string(p.AppendJSONKey(nil, key)),
		`{"saddr":"10.0.0.1","vip":"192.0.2.1","sport":443,"proto":"TCP","zone":7,"dev":"eth0"}`)
	equal(t, "value", string(p.AppendJSONValue(nil, nil, value, schematest.Boot)), `{"state":"CT_OPEN","syn":1,"level":-3,`+
		`"nat":{"daddr":"fd00::1","dport":8080},"last_seen":"2026-01-01T00:00:05Z","packets":"9007199254740993",`+
		`"drift":-1,"alive":true,"mac":"02:00:00:00:00:aa","comm":"a\"b","load":1.5,"ports":[80,0,443,0],"features":"F_TOP",`+
		`"hops":[{"dev":"","cost":-1},{"dev":"9","cost":0}],"verdict":"DROP","blob":"dead000000000000",`+
		`"reply_nat":{"daddr":"::","dport":0},"expires":"2026-01-01T00:00:06Z","servers":["10.0.0.2","10.0.0.3","0.0.0.0"],"zone":4}`)
	equal(t, "short key", string(p.AppendJSONKey(nil, key[:3])), `"0a0000"`)

	// For arbitrary bytes the output is valid JSON, and char arrays decode to the same bytes.
	p.All = true
	for i := range value {
		value[i] = byte(200 + i)
	}
	le := binary.LittleEndian
	le.PutUint32(value[76:], math.Float32bits(float32(math.Inf(-1))))
	for i := range 16 {
		value[60+i] = byte(i*17) ^ 0x13
	}
	var decoded struct {
		Comm, Load, Lock, Next, Verdict any
		State                           json.Number
	}
	if err := json.Unmarshal(p.AppendJSONValue(nil, nil, value, schematest.Boot), &decoded); err != nil {
		t.Fatalf("decode JSON: %v in %s", err, p.AppendJSONValue(nil, nil, value, schematest.Boot))
	}
	runes := []rune(decoded.Comm.(string))
	for i, c := range value[60:76] {
		if runes[i] != rune(c) {
			t.Errorf("byte %d of text: got %#x, want %#x", i, runes[i], c)
		}
	}
	equal(t, "load", decoded.Load.(string), "-Infinity")
	equal(t, "lock", decoded.Lock.(string), "c8c9cacb")
}

// TestPrinterEscapesNames prints an interface and a value of an enum whose names have control characters, quotation marks
// and letters.
func TestPrinterEscapesNames(t *testing.T) {
	const name = "\x1b]0;é\"\u202e"
	s := schematest.Conntrack()
	s.Value.Fields[1].Enum = &schema.Enum{Values: []schema.EnumValue{{Name: "a\n" + name}}}
	p := export.NewPrinter(s, schematest.Links{2: name})
	key, _ := schematest.Entry()
	equal(t, "key", string(p.AppendKey(nil, key)), `{saddr=10.0.0.1 vip=192.0.2.1 sport=443 proto=TCP zone=7 dev=\u001b]0;é"\u202e}`)
	var decoded struct{ Dev, State string }
	for _, encoded := range [][]byte{p.AppendJSONKey(nil, key), p.AppendJSONValue(nil, nil, make([]byte, s.Value.Size), nil)} {
		if err := json.Unmarshal(encoded, &decoded); err != nil || !printable.Is(string(encoded)) {
			t.Errorf("JSON: got %q, error %v, want valid JSON of printable characters", encoded, err)
		}
	}
	equal(t, "interface", decoded.Dev, name)
	equal(t, "value of the enum", decoded.State, "a\n"+name)
}

func TestPrinterOpaqueAndPerCPU(t *testing.T) {
	bytes := func(size int) *schema.Message {
		return &schema.Message{Name: "m", Size: size, Fields: []schema.Field{{Name: "bytes", Number: 1, Size: size, Kind: schema.KindBytes}}}
	}
	p := export.NewPrinter(&schema.Schema{Map: "m", Opaque: true, Key: bytes(2), Value: bytes(3)}, nil)
	equal(t, "opaque text", string(p.AppendKey(nil, []byte{0, 1})), `0001`)
	equal(t, "opaque JSON", string(p.AppendJSONValue(nil, nil, []byte{1, 2, 0}, nil)), `"010200"`)

	p = export.NewPrinter(schematest.PerCPU(), nil)
	equal(t, "CPUs", string(p.AppendValue(nil, nil, []byte{16: 5, 32: 7, 63: 0}, nil)), `{cpu=[{} {packets=5} {packets=7}]}`)
	equal(t, "CPUs as JSON", string(p.AppendJSONValue(nil, nil, []byte{16: 5, 63: 0}, nil)),
		`{"cpu":[{"packets":"0","port":0},{"packets":"5","port":0},{"packets":"0","port":0},{"packets":"0","port":0}]}`)
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}
