package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// TestSchemaSuggest: the command prints a setting that syncd reads, and that ends all suggestions.
func TestSchemaSuggest(t *testing.T) {
	w := newWorkplace(t)
	w.pinSeen()
	for name, want := range map[string]string{
		"seen": `# map seen: 200 entries were read
field:
  # 200 of 200 values are times of bpf_ktime_get_ns
  - 'seen:last_seen=ktime,volatile'
`,
		"bytes": `# map bytes: 200 entries were read
field:
  # 200 of 200 values are times of bpf_ktime_get_ns
  - 'bytes:@0:8=ktime'
`,
	} {
		pin := filepath.Join(filepath.Dir(w.pin), name)
		out, err := run(t, "schema", "suggest", pin)
		if err != nil || out != want {
			t.Errorf("suggest %s: got error %v and\n%s\nwant\n%s", name, err, out, want)
		}
		_, settings, _ := strings.Cut(out, "\n")
		w.write("suggested.yaml", settings)
		out, err = run(t, "schema", "suggest", pin, "--config", w.path("suggested.yaml"), "--json")
		var all []mapSuggestions
		if jsonErr := json.Unmarshal([]byte(out), &all); err != nil || jsonErr != nil || len(all) != 1 || all[0].Entries != 200 || len(all[0].Fields) != 0 {
			t.Errorf("suggest %s with the suggested settings: got %s, errors %v and %v, want no suggestion from 200 entries", name, out, err, jsonErr)
		}
	}
}
