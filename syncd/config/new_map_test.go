package config

import (
	"strings"
	"testing"
)

func TestNewMap(t *testing.T) {
	for _, tt := range []struct {
		entries, deletes []string
		wins             bool   // for the map ct
		problem          string // of the settings; empty: none
	}{
		{nil, nil, false, ""},
		{nil, []string{"ct=any"}, true, ""},
		{[]string{"ct=map"}, nil, true, ""},
		{[]string{"ct=table"}, []string{"ct=any"}, false, ""},
		{[]string{"nat=table"}, []string{"ct=any"}, true, ""},
		{[]string{"nat=map"}, nil, false, ""},
		{[]string{"ct=map", "ct=table"}, nil, false, ""},
		{[]string{"other=map"}, nil, false, "no map is called other"},
		{[]string{"ct"}, nil, false, "write MAP=table or MAP=map"},
		{[]string{"ct=any"}, nil, false, "write MAP=table or MAP=map"},
	} {
		c := Default()
		c.Maps, c.NewMap, c.Deletes = []string{"ct", "nat=pin:/sys/fs/bpf/n"}, tt.entries, tt.deletes
		if got := c.NewMapWins("ct"); got != tt.wins {
			t.Errorf("new-map %v, deletes %v: got wins %v, want %v", tt.entries, tt.deletes, got, tt.wins)
		}
		err := c.Validate()
		if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("new-map %v: got error %v, want %q", tt.entries, err, tt.problem)
		}
	}
}
