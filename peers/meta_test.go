package peers

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"mapsync/internal/poll"
)

func TestMetaSizeLimit(t *testing.T) {
	t.Parallel()
	m := meta{incarnation: 1<<64 - 1, serviceAddr: strings.Repeat("a", maxName) + ":65535"}
	b := m.encode()
	if len(b) > metaLimit || metaLimit > memberlist.MetaMaxSize {
		t.Errorf("longest metadata: got %d bytes, want at most %d", len(b), memberlist.MetaMaxSize)
	}
	got, err := decodeMeta(b)
	if err != nil || got != m {
		t.Errorf("decodeMeta: got %+v, %v, want %+v and nil", got, err, m)
	}
}

func TestDecodeMetaRejectsInvalidData(t *testing.T) {
	t.Parallel()
	good := meta{incarnation: 7, serviceAddr: "10.0.0.1:7947"}.encode()
	if m, err := decodeMeta(append(good[:len(good):len(good)], 0x18, 0x05)); err != nil || m.incarnation != 7 {
		t.Errorf("unknown field: got %+v, %v, want it skipped", m, err)
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
			t.Errorf("%s: got %+v, want an error", name, m)
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
			t.Errorf("decodeMeta: got invalid %+v, want an error", m)
		}
		again, err := decodeMeta(m.encode())
		if err != nil || again != m {
			t.Errorf("round trip of %+v: got %+v, error %v, want the same and nil", m, again, err)
		}
	})
}

// foreignDelegate is the delegate of another memberlist application.
type foreignDelegate struct{ delegate }

func (foreignDelegate) NodeMeta(int) []byte { return []byte("hello") }

func TestBadMetaIsIgnored(t *testing.T) {
	t.Parallel()
	a := start(t, "a")
	conf := memberlist.DefaultLocalConfig()
	conf.EnableCompression = false
	conf.Name, conf.BindAddr, conf.BindPort = "unknown", "127.0.0.1", 0
	conf.Delegate = foreignDelegate{}
	conf.LogOutput = &logBuffer{}
	list, err := memberlist.Create(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = list.Shutdown() }()
	if _, err := list.Join([]string{a.GossipAddr()}); err != nil {
		t.Fatal(err)
	}
	poll.Within(t, 5*time.Second, "the unknown node is counted and logged", func() bool {
		return a.Stats().BadMeta > 0 && a.logs.count("level=WARN", "invalid metadata", "node=unknown") > 0
	})
	if len(a.Members()) != 0 || a.logs.count("level=WARN") != 1 {
		t.Errorf("members: got %v, want none and one warning", a.Members())
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
			t.Errorf("splitLine(%q): got %q, want %q", line, got, want)
		}
	}
}

func TestLogLimiterIsBounded(t *testing.T) {
	t.Parallel()
	g := newLogLimiter(logEvery)
	passed := 0
	for i := range 3 * maxLogKeys {
		if g.allow(string(rune(i + 1))) {
			passed++
		}
	}
	if passed != maxLogKeys+1 || len(g.lastAllowed) > maxLogKeys+1 {
		t.Errorf("allowed and stored keys: got %d and %d, want %d", passed, len(g.lastAllowed), maxLogKeys+1)
	}
	if g.suppressedCount() != uint64(3*maxLogKeys-passed) {
		t.Errorf("suppressed messages: got %d of %d, want %d", g.suppressedCount(), 3*maxLogKeys, uint64(3*maxLogKeys-passed))
	}
}
