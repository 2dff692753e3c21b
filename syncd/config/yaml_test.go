package config

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// growing returns a document of less than 500 bytes, in which a setting stands for 9^levels texts by aliases.
func growing(levels int) string {
	text := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < levels; i++ {
		text += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ","))
	}
	return text + fmt.Sprintf("expected-peers: *a%d\n", levels-1)
}

// allocated returns the number of bytes that fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestRefusedYAML: the error has the line and the remedy.
func TestRefusedYAML(t *testing.T) {
	for text, want := range map[string][]string{
		"map: [a]\njoin: [&x '10.0.0.2:7946']\n":        {"line 2 has an anchor", "in quotes"},
		"map: [a]\n\nallowed-names: [*.example.com]\n":  {"line 3 has an alias", "begins with * in quotes"},
		"map: [a]\nobservers:\n- *watch\n":              {"line 3 has an alias", "in quotes"},
		"map: [a]\n<<: {buffer: ring}\n":                {"line 2 has a merge key", "write the keys"},
		"map: [a]\nbuffer: !!str ring\n":                {"line 2 has a tag", "remove it"},
		"%YAML 1.2\n---\nmap: [a]\n":                    {"line 1 has a directive", "remove it"},
		"map: [a]\njoin: " + strings.Repeat("[", 16):    {"line 2: ", "deeper than 16 levels", "remove brackets"},
		"map: [a]\njoin: " + strings.Repeat("{a: ", 16): {"line 2: ", "deeper than 16 levels"},
		"map: [a]\njoin:\n" + strings.Repeat("- ", 17):  {"line 3: ", "deeper than 16 levels"},
		"map: [a]\njoin:\n" + indented(17):              {"line 18: ", "deeper than 16 levels"},
		"map: [a]\n" + keys("k%d: 1\n", maxKeys+1):      {"line 1025: ", "more than 1024 keys"},
		"map: [a]\n? a\n" + keys("? k%d\n", maxKeys):    {"line 1025: ", "more than 1024 keys"},
		"map: [a,\n" + strings.Repeat("b,", maxTokens):  {"line 2: ", "more than 65536 words and signs", "REF[FIRST-LAST]"},
		"map: [a]\n" + strings.Repeat("#", maxFileSize): {"larger than 262144 bytes", "remove comments"},
		"map: [a]\n---\nmap: [b]\n":                     {"line 2 begins a second document"},
		"---\n---\nmap: [b]\n":                          {"line 2 begins a second document"},
		"map: [a]\n...\n# end\nmap: [b]\n":              {"line 4 begins a second document"},
	} {
		_, err := Load(write(t, text), nil)
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("load %.50q: got error %v, want one with %q", text, err, part)
			}
		}
	}
}

// indented returns nested mappings of this depth, one a line.
func indented(depth int) (text string) {
	for i := range depth {
		text += strings.Repeat(" ", i+1) + "a:\n"
	}
	return text
}

func keys(format string, count int) string {
	var b strings.Builder
	for i := range count {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// TestAcceptedYAML: signs in quotes and in the middle of a text, as many levels as metrics need, and the settings of
// MaxMaps maps.
func TestAcceptedYAML(t *testing.T) {
	c, err := Load(write(t, `--- # of lb1
map: [a, 'b=/sys/fs/bpf/b[0]']
allowed-names: ['*.example.com', lb*, "&x"]
join: ["10.0.0.2:7946",
  '10.0.0.3:7946']
metrics:
- map: a
  labels: {destination: daddr, port: dport, a: b, c: d, e: f, g: h, i: j, k: l, m: n, o: p, q: r, s: t, u: v, w: x, y: z}
  counters:
  - {name: a_total, field: a, help: A.}
  - name: b_total
    field: b
    help: B.
`), nil)
	if err != nil || len(c.AllowedNames) != 3 || c.AllowedNames[0] != "*.example.com" || len(c.Metrics) != 1 || len(c.Metrics[0].Labels) != 15 || len(c.Metrics[0].Counters) != 2 {
		t.Errorf("load: got %+v, error %v, want all settings of the file", c, err)
	}
	var all strings.Builder
	for setting, format := range map[string]string{
		"map": "- ct_%05d=/sys/fs/bpf/tc/globals/lb_connections_%[1]d\n", "schema": "- ct_%05d=/usr/lib/lb/objects/lb_connections.o\n",
		"field": "- ct_%05d:last_seen=ktime\n", "deletes": "- ct_%05d=any\n",
	} {
		all.WriteString(setting + ":\n" + keys(format, MaxMaps))
	}
	if c, err := Load(write(t, all.String()), nil); err != nil || len(c.Maps) != MaxMaps || len(c.Fields) != MaxMaps {
		t.Errorf("load settings of %d maps in %d bytes: got error %v, want all maps", MaxMaps, all.Len(), err)
	}
}

// TestRefusedYAMLNeedsLittleMemory: a document that the parser or its errors would make large is refused before. The
// bounds are far above what the refusal needs, and far below what each document needed without it.
func TestRefusedYAMLNeedsLittleMemory(t *testing.T) {
	const line = 60_000
	for name, c := range map[string]struct {
		text  string
		limit uint64 // MB
	}{
		"aliases":                {growing(7), 2},
		"open brackets":          {strings.Repeat("[", line), 64},
		"brackets":               {"map: " + strings.Repeat("[", line/2) + strings.Repeat("]", line/2), 64},
		"items of items":         {strings.Repeat("- ", line/2), 64},
		"many keys":              {keys("k%06d: 1\n", line/8), 64},
		"error on a long line":   {strings.Repeat("[,", line/2), 64},
		"duplicate key":          {"{" + strings.Repeat("a,", line/2) + "}", 128},
		"peers in a mapping":     {"expected-peers: {" + strings.Repeat("a,", line/2) + "}", 128},
		"longest accepted file":  {strings.Repeat("[", maxFileSize), 256},
		"longer than the limits": {strings.Repeat("[", 64<<20), 2},
	} {
		path := write(t, c.text)
		var err error
		n := allocated(func() { _, err = Load(path, nil) }) >> 20
		t.Logf("%s: %d bytes of YAML, %d MB allocated", name, len(c.text), n)
		if err == nil || n > c.limit {
			t.Errorf("%s: got error %v and %d MB allocated, want an error and at most %d MB", name, err, n, c.limit)
		} else if len(err.Error()) > 2*maxErrorText {
			t.Errorf("%s: text of the error: got %d bytes, want at most %d", name, len(err.Error()), 2*maxErrorText)
		}
	}
}
