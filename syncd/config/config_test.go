package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func flags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	c := Default()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c.Bind(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "syncd.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEverySettingIsAFlagAndAKey(t *testing.T) {
	fs := flags(t)
	typ := reflect.TypeFor[Config]()
	for i := range typ.NumField() {
		key := typ.Field(i).Tag.Get("yaml")
		if key == "metrics" {
			continue
		}
		if key == "" || fs.Lookup(key) == nil {
			t.Errorf("setting %s: key %q: got no flag, want a flag of the same name", typ.Field(i).Name, key)
		}
	}
	n := 0
	fs.VisitAll(func(*pflag.Flag) { n++ })
	if want := typ.NumField() - 1; n != want {
		t.Errorf("flags: got %d, want %d (one for each setting but metrics)", n, want)
	}
}

func TestSettingsPrecedence(t *testing.T) {
	path := write(t, "map: [ct_map]\nattach: kprobe\nbuffer: perf\nsync-timeout: 5s\njoin: ['10.0.0.2:7946']\n")
	got, err := Load(path, flags(t, "--buffer=ring", "--join=10.0.0.3:7946", "--join=10.0.0.4:7946", "--node-name=a"))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Maps, want.Attach, want.SyncTimeout, want.NodeName = []string{"ct_map"}, "kprobe", 5*time.Second, "a"
	want.Join = []string{"10.0.0.3:7946", "10.0.0.4:7946"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

func TestFileIsStrict(t *testing.T) {
	for text, want := range map[string]string{
		"map: [a]\nbufer: ring\n":             "bufer",
		"map: [a]\nbuffer: ring\nbuffer: x\n": "already defined",
		"map: [a]\nbuffer-size: many\n":       "cannot unmarshal",
		"map: [a\n":                           "parse YAML",
		"map: []\n":                           "no map to watch",
		"map: [a, 'a=pin:/x']\n":              "called a already",
		"map: ['id:7']\n":                     "NAME=id:7",
		"map: ['a=what:7']\n":                 "[NAME=]REF",
		"map: [a]\nattach: magic\n":           "attach \"magic\" is unknown",
		"map: [a]\ntls-cert: x\n":             "go together",
		"map: [a]\ngrpc-listen: nowhere\n":    "write HOST:PORT",
		"map: [a]\nsync-timeout: 0s\n":        "not positive",
		"map: [a]\nscan-interval: 0s\n":       "not positive",
		"map: [a]\nscan-budget: 0\n":          "above 0",
		"map: [a]\nmax-scan-interval: 9s\n":   "below scan-interval 10s",
		"map: [a]\nscan-cpus: 3-1\n":          "scan-cpus: \"3-1\" is not a list",
		"map: [a]\nscan-budget: .nan\n":       "above 0",
		"map: [a]\nscan-budget: 101\n":        "at most 100",
		"map: [a]\nrefresh-interval: -1s\n":   "0 switches it off",
	} {
		if _, err := Load(write(t, text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", text, err, want)
		}
	}
}

// A file without settings keeps the defaults. A file with a second document is an error.
func TestEmptyFileKeepsTheDefaults(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing set yet\n", "---\n", "--- # nothing\n...\n", "null\n", "~\n", "{}\n"} {
		got, err := Load(write(t, text), flags(t, "--map=ct", "--node-name=a"))
		if err != nil {
			t.Errorf("load %q: got error %v, want the defaults", text, err)
			continue
		}
		want := Default()
		want.Maps, want.NodeName = []string{"ct"}, "a"
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("load %q: settings differ from the defaults (-want +got):\n%s", text, diff)
		}
	}
	if _, err := Load(write(t, "map: [a]\n---\nmap: [b]\n"), nil); err == nil || !strings.Contains(err.Error(), "line 2 begins a second document") {
		t.Errorf("load a file with two documents: got error %v, want it to contain \"line 2 begins a second document\"", err)
	}
}

func TestMapsAreLimitedAndDistinct(t *testing.T) {
	c := Default()
	c.NodeName = "a"
	for i := range MaxMaps {
		c.Maps = append(c.Maps, fmt.Sprintf("m%d=/sys/fs/bpf/m%d", i, i))
	}
	if err := c.Validate(); err != nil {
		t.Errorf("validate %d maps: got error %v, want none", MaxMaps, err)
	}
	c.Maps = append(c.Maps, "surplus")
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "1025 maps are configured") {
		t.Errorf("validate 1025 maps: got error %v, want it to contain \"1025 maps are configured\"", err)
	}
	for _, same := range [][]string{
		{"a=/sys/fs/bpf/ct", "b=pin:/sys/fs/bpf/ct"}, {"a=/sys/fs/bpf/ct", "b=/sys/fs/bpf/./lb/../ct"}, {"a=ct", "b=name:ct"}, {"a=id:7", "b=id:7"},
	} {
		c.Maps = same
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "a is the same kernel map") {
			t.Errorf("validate maps %q: got error %v, want it to contain \"a is the same kernel map\"", same, err)
		}
	}
}

// TestListOfProblemsIsBounded: a file of unusable maps has a short error.
func TestListOfProblemsIsBounded(t *testing.T) {
	c := Default()
	for i := range 10_000 {
		c.Maps = append(c.Maps, fmt.Sprint("bad:", i))
	}
	err := c.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != maxProblems || !regexp.MustCompile(`\nand [0-9]+ more problems$`).MatchString(err.Error()) {
		t.Errorf("10,000 unusable maps: got %.300v, want %d problems and their number", err, maxProblems)
	}
}

func TestParseMap(t *testing.T) {
	for in, want := range map[string]Map{
		"ct_map":                        {"ct_map", "name:ct_map"},
		"name:ct_map":                   {"ct_map", "name:ct_map"},
		"/sys/fs/bpf/lb/ct_map":         {"ct_map", "pin:/sys/fs/bpf/lb/ct_map"},
		"ct=pin:/sys/fs/bpf/lb/ct=_map": {"ct", "pin:/sys/fs/bpf/lb/ct=_map"},
		"ct=id:12":                      {"ct", "id:12"},
		"lru0=/sys/fs/bpf/lru[0]":       {"lru0", "pin:/sys/fs/bpf/lru[0]"},
		"lru0=lru_maps[0x01]":           {"lru0", "name:lru_maps[0x01]"},
	} {
		got, err := ParseMap(in)
		if err != nil || got != want {
			t.Errorf("parse map %q: got %+v, error %v, want %+v", in, got, err, want)
		}
	}
	for in, want := range map[string]string{"/sys/fs/bpf/lru[0]": "write NAME=pin:/sys/fs/bpf/lru[0]", "id:12": "write NAME=id:12"} {
		if _, err := ParseMap(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse map %q: got error %v, want one with %q", in, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("map: [ct_map]\nattach: kprobe\nsync-timeout: 5s\n"))
	f.Add([]byte("join: ['10.0.0.2:7946']\nbuffer-size: 4096\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("map: [m]\nmetrics: [{map: m, labels: {destination: daddr}, top: 5, counters: [{name: a_total, field: bytes, help: A.}]}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := Default()
		if c.Parse(data) != nil {
			return
		}
		// Parsed settings are either valid or refused with an error. Validate never panics.
		if err := c.Validate(); err == nil && len(c.Maps) == 0 {
			t.Error("validate settings without a map: got no error, want one")
		}
	})
}

func TestAttachMethods(t *testing.T) {
	for _, attach := range []string{"auto", "fexit", "kprobe", "syscall", "none"} {
		if c, err := Load(write(t, "map: [a]\nattach: "+attach+"\n"), nil); err != nil || c.Attach != attach {
			t.Errorf("attach %s: got %q, error %v, want that method", attach, c.Attach, err)
		}
	}
}

func TestExpectedPeers(t *testing.T) {
	for text, want := range map[string]struct {
		names []string
		count int
	}{
		"expected-peers: 2\n":               {nil, 2},
		"expected-peers: '2'\n":             {nil, 2},
		"expected-peers: [3]\n":             {nil, 3},
		"expected-peers: lb2\n":             {[]string{"lb2"}, 1},
		"expected-peers: [lb3, lb1, lb2]\n": {[]string{"lb2", "lb3"}, 2}, // this node is left out
		"expected-peers: [lb2, lb2]\n":      {[]string{"lb2"}, 1},
		"expected-peers:\n":                 {},
		"attach: none\n":                    {},
	} {
		c, err := Load(write(t, "map: [a]\nnode-name: lb1\n"+text), nil)
		if err != nil {
			t.Errorf("load %q: got error %v, want none", text, err)
			continue
		}
		if names, count := c.Expected(); !slices.Equal(names, want.names) || count != want.count {
			t.Errorf("expected peers of %q: got %q and count %d, want the names and the count of the test", text, names, count)
		}
	}
	for _, name := range []string{"10.0.0.2", "inf", "1e5", "12a"} {
		if _, err := Load(write(t, "map: [a]\nexpected-peers: '"+name+"'\n"), nil); err != nil {
			t.Errorf("expected peer named %s: got error %v, want none", name, err)
		}
	}
	c, err := Load(write(t, "map: [a]\nnode-name: lb1\nexpected-peers: 2\n"), flags(t, "--expected-peers=lb2", "--expected-peers=lb3"))
	if names, _ := c.Expected(); err != nil || !slices.Equal(names, []string{"lb2", "lb3"}) {
		t.Errorf("expected peers of the flags: got %q, error %v, want lb2 and lb3", names, err)
	}
	for text, want := range map[string]string{
		"expected-peers: [2, lb2]\n": "names of nodes, or one number",
		"expected-peers: [a/b]\n":    "names of nodes, or one number",
		"expected-peers: 10000\n":    "at most 256",
		"expected-peers: -1\n":       "at most 256",
		"expected-peers: 2.5\n":      "at most 256",
		"cluster: 'a b'\n":           "cluster \"a b\" is not usable",
	} {
		if _, err := Load(write(t, "map: [a]\n"+text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("load %q: got error %v, want the error of the test", text, err)
		}
	}
}

// Peers refuse a name that is not valid UTF-8, so the settings refuse it first.
func TestNodeNames(t *testing.T) {
	for name, valid := range map[string]bool{
		"lb1": true, "2001:db8::1": true, "knoten-ü": true, strings.Repeat("n", 128): true,
		"": false, "a b": false, "a/b": false, "a\u00a0b": false, "a\x00b": false, "a\x1bb": false, "a\xffb": false,
		strings.Repeat("n", 129): false,
	} {
		c := Default()
		c.Maps, c.NodeName = []string{"a"}, name
		if err := c.Validate(); (err == nil || !strings.Contains(err.Error(), "node-name")) != valid {
			t.Errorf("node name %q: got error %v, want valid: %t", name, err, valid)
		}
	}
}
