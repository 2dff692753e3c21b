package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestProcessEnded: the start time distinguishes a process from a later one with the same ID.
func TestProcessEnded(t *testing.T) {
	data, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	zombie := filepath.Join(t.TempDir(), "zombie")
	fields[0] = "Z"
	if err := os.WriteFile(zombie, []byte("1 (a) b) "+strings.Join(fields, " ")), 0o600); err != nil {
		t.Fatal(err)
	}
	self := fmt.Sprintf("/proc/%d/stat", os.Getpid())
	for _, c := range []struct {
		path  string
		start int64
		want  bool
	}{
		{self, ticks * tick, false},
		{self, ticks*tick + tick - 1, false},
		{self, (ticks + 1) * tick, true},
		{zombie, ticks * tick, true},
		{filepath.Join(t.TempDir(), "none"), ticks * tick, true},
		{t.TempDir(), ticks * tick, false},
	} {
		if got := hasEnded(c.path, c.start); got != c.want {
			t.Errorf("process of %s started at %d has ended: got %t, want %t", c.path, c.start, got, c.want)
		}
	}
}
