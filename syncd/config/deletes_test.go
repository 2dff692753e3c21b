package config

import (
	"strings"
	"testing"
)

func TestDeletes(t *testing.T) {
	for _, tt := range []struct {
		entries []string
		any     bool   // for the map ct
		problem string // of the settings; empty: none
	}{
		{nil, false, ""},
		{[]string{"ct=any"}, true, ""},
		{[]string{"ct=owner"}, false, ""},
		{[]string{"nat=any"}, false, ""},
		{[]string{"ct=any", "ct=owner"}, false, ""},
		{[]string{"ct=owner", "ct=any"}, true, ""},
		{[]string{"other=any"}, false, "no map is called other"},
		{[]string{"ct"}, false, "write MAP=any or MAP=owner"},
		{[]string{"ct=all"}, false, "write MAP=any or MAP=owner"},
		{[]string{"=any"}, false, "write MAP=any or MAP=owner"},
	} {
		c := Default()
		c.Maps, c.Deletes = []string{"ct", "nat=pin:/sys/fs/bpf/n"}, tt.entries
		if got := c.DeletesAny("ct"); got != tt.any {
			t.Errorf("deletes %v: got any %v, want %v", tt.entries, got, tt.any)
		}
		err := c.Validate()
		if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("deletes %v: got error %v, want %q", tt.entries, err, tt.problem)
		}
	}
}
