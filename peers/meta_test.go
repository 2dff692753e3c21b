package peers

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

func TestMetaFits(t *testing.T) {
	t.Parallel()
	m := meta{incarnation: 1<<64 - 1, serviceAddr: strings.Repeat("a", maxName) + ":65535"}
	b := m.encode()
	if len(b) > metaLimit || metaLimit > memberlist.MetaMaxSize {
		t.Errorf("longest meta data has %d bytes, memberlist takes %d", len(b), memberlist.MetaMaxSize)
	}
	got, err := decodeMeta(b)
	if err != nil || got != m {
		t.Errorf("decodeMeta = %+v, %v", got, err)
	}
}

func TestDecodeMetaRefuses(t *testing.T) {
	t.Parallel()
	good := meta{incarnation: 7, serviceAddr: "10.0.0.1:7947"}.encode()
	if m, err := decodeMeta(append(good[:len(good):len(good)], 0x18, 0x05)); err != nil || m.incarnation != 7 {
		t.Errorf("unknown field: %+v, %v, want it skipped", m, err)
	}
	for name, b := range map[string][]byte{
		"empty":         nil,
		"other version": append([]byte{9}, good[1:]...),
		"cut":           good[:len(good)-1],
		"twice":         append(good[:len(good):len(good)], good[1:]...),
		"wrong type":    {metaVersion, 0x0a, 0x01, 'x'},
		"no address":    good[:3],
		"wildcard":      meta{incarnation: 7, serviceAddr: "0.0.0.0:1"}.encode(),
		"no port":       meta{incarnation: 7, serviceAddr: "10.0.0.1"}.encode(),
		"incarnation 0": meta{serviceAddr: "10.0.0.1:7947"}.encode(),
		"long":          bytes.Repeat([]byte{1}, metaLimit+1),
		"garbage":       []byte("{\"incarnation\":1}"),
	} {
		if m, err := decodeMeta(b); err == nil {
			t.Errorf("%s: decoded to %+v", name, m)
		}
	}
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add(meta{incarnation: 7, serviceAddr: "10.0.0.1:7947"}.encode())
	f.Add(meta{incarnation: 1 << 63, serviceAddr: "[2001:db8::1]:65535"}.encode())
	f.Add([]byte{metaVersion, 0x0a, 0x01, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err != nil {
			return
		}
		if _, _, err := net.SplitHostPort(m.serviceAddr); err != nil || m.incarnation == 0 {
			t.Errorf("accepted %+v", m)
		}
		again, err := decodeMeta(m.encode())
		if err != nil || again != m {
			t.Errorf("%+v came back as %+v, %v", m, again, err)
		}
	})
}

// stranger is another program on memberlist.
type stranger struct{ delegate }

func (stranger) NodeMeta(int) []byte { return []byte("hello") }

func TestBadMetaIsIgnored(t *testing.T) {
	t.Parallel()
	a := start(t, "a")
	conf := memberlist.DefaultLocalConfig()
	conf.EnableCompression = false
	conf.Name, conf.BindAddr, conf.BindPort = "stranger", "127.0.0.1", 0
	conf.Delegate = stranger{}
	conf.LogOutput = &logBook{}
	list, err := memberlist.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = list.Shutdown() }()
	if _, err := list.Join([]string{a.GossipAddr()}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the stranger is counted and logged", func() bool {
		return a.Stats().BadMeta > 0 && a.logs.count("level=WARN", "does not introduce itself properly", "node=stranger") > 0
	})
	if len(a.Members()) != 0 || a.logs.count("level=WARN") != 1 {
		t.Errorf("members %v, want none and one warning", a.Members())
	}
}

func TestSplitLine(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"[ERR] memberlist: Push/Pull with b failed: EOF\n": "WARN Push/Pull with b failed: EOF",
		"[INFO] memberlist: Suspect b has failed\n":        "INFO Suspect b has failed",
		"[DEBUG] memberlist: x\n":                          "DEBUG x",
		"Err: Could not set the deadline: x\n":             "WARN Err: Could not set the deadline: x",
		"[WARN] odd ] line":                                "WARN odd ] line",
	} {
		level, text := splitLine(line)
		if got := level.String() + " " + text; got != want {
			t.Errorf("splitLine(%q) = %q, want %q", line, got, want)
		}
	}
}

func TestGateIsBounded(t *testing.T) {
	t.Parallel()
	g := newGate(logEvery)
	passed := 0
	for i := range 3 * gateKeys {
		if g.allow(string(rune(i + 1))) {
			passed++
		}
	}
	if passed != gateKeys+1 || len(g.passed) > gateKeys+1 {
		t.Errorf("%d keys passed, %d kept, want %d", passed, len(g.passed), gateKeys+1)
	}
	if g.held() != uint64(3*gateKeys-passed) {
		t.Errorf("%d held back of %d", g.held(), 3*gateKeys)
	}
}
