package examples

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"mapsync/internal/testcert"
)

// precede adds a field to the front of a struct: each other field moves, and has another number on the wire.
func precede(t *testing.T, typ btf.Type, name string) btf.Type {
	t.Helper()
	was, ok := btf.UnderlyingType(typ).(*btf.Struct)
	if !ok {
		t.Fatalf("type of the entries: got %v, want a struct", typ)
	}
	s := &btf.Struct{Name: was.Name, Size: was.Size + 8, Members: []btf.Member{
		{Name: name, Type: &btf.Int{Name: "unsigned long long", Size: 8}},
	}}
	for _, m := range was.Members {
		m.Offset += 64
		s.Members = append(s.Members, m)
	}
	return s
}

// TestFlowsRefusesOtherTypes runs a node whose map has one more field at the front of its keys, or of its values, than the
// exported file. The example names the map and the remedy, and prints no entry.
func TestFlowsRefusesOtherTypes(t *testing.T) {
	program := buildExample(t)
	for name, change := range map[string]func(*ebpf.MapSpec){
		"key":   func(m *ebpf.MapSpec) { m.Key, m.KeySize = precede(t, m.Key, "tenant"), m.KeySize+8 },
		"value": func(m *ebpf.MapSpec) { m.Value, m.ValueSize = precede(t, m.Value, "cookie"), m.ValueSize+8 },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMap(t, change)
			key, value := bytes.Repeat([]byte{1}, int(m.KeySize())), bytes.Repeat([]byte{2}, int(m.ValueSize()))
			if err := m.Put(key, value); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			ca, err := testcert.NewCA(dir, "ca")
			if err != nil {
				t.Fatal(err)
			}
			startNode(t, dir, ca, reference(t, m))
			observer, err := ca.Issue("observer", testcert.Options{})
			if err != nil {
				t.Fatal(err)
			}
			command, _ := readPage(t)
			var out, errs bytes.Buffer
			cmd := exec.CommandContext(t.Context(), program, adapt(command, observer)...)
			cmd.Stdout, cmd.Stderr = &out, &errs
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("the example: got %v, want exit code 1", err)
			}
			if out.Len() > 0 {
				t.Errorf("output: got %q, want none", out.String())
			}
			if text := errs.String(); !strings.Contains(text, "map ct_map of the node has other types") || !strings.Contains(text, "syncd schema export ct_map") {
				t.Errorf("error: got %q, want the map and the remedy", text)
			}
		})
	}
}
