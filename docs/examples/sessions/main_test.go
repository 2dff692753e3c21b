package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// docs/quickstart.md executes the commands on a pinned map. These are the errors of their use.
func TestWrongUseOfSessions(t *testing.T) {
	pin := filepath.Join(t.TempDir(), "ct_map")
	for want, args := range map[string]string{
		"no command is given":                  "",
		`"move" is not a command`:              "move " + pin,
		`"put" is not a command with 2`:        "put " + pin + " 198.51.100.7:40001",
		`address "198.51.100.7"`:               "put " + pin + " 198.51.100.7 443 10.0.0.11:8080",
		`address "[fd00::1]:80"`:               "put " + pin + " 198.51.100.7:1 443 [fd00::1]:80",
		`port "70000" is not a number`:         "delete " + pin + " 198.51.100.7:1 70000",
		"open map":                             "list " + pin,
		"is it in a file system of type bpf?)": "create " + pin,
	} {
		var out bytes.Buffer
		if err := run(&out, strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("sessions %s: got error %v, want %q", args, err, want)
		}
	}
}

func TestSessionHasTheTypesOfTheMap(t *testing.T) {
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(mapSpec())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	k, err := parseKey("198.51.100.7:40001", "443")
	if err != nil {
		t.Fatal(err)
	}
	v := value{Backend: [4]byte{10, 0, 0, 11}, Port: 8080}
	if err := m.Put(encodeKey(k), encodeValue(v)); err != nil {
		t.Fatal(err)
	}
	var b [entrySize]byte
	if err := m.Lookup(encodeKey(k), &b); err != nil {
		t.Fatal(err)
	}
	got := session{decodeKey(encodeKey(k)), decodeValue(b)}
	if want := "198.51.100.7:40001 -> :443 -> 10.0.0.11:8080"; got.String() != want {
		t.Errorf("session: got %s, want %s", got, want)
	}
	if bytesOfKey := encodeKey(k); !bytes.Equal(bytesOfKey[:], []byte{198, 51, 100, 7, 0x9c, 0x41, 0x01, 0xbb}) {
		t.Errorf("key: got % x, want network byte order", bytesOfKey)
	}
}
