package config

import (
	"strings"
	"testing"
)

func TestInPlace(t *testing.T) {
	for _, tt := range []struct {
		entries []string
		attach  string
		hooks   bool   // for the map ct
		problem string // of the settings; empty: none
	}{
		{nil, "auto", false, ""},
		{[]string{"ct=hook"}, "auto", true, ""},
		{[]string{"ct=hook"}, "fexit", true, ""},
		{[]string{"ct=scan"}, "kprobe", false, ""},
		{[]string{"nat=hook"}, "auto", false, ""},
		{[]string{"ct=hook", "ct=scan"}, "auto", false, ""},
		{[]string{"ct=hook"}, "kprobe", true, "needs attach auto or fexit"},
		{[]string{"other=hook"}, "auto", false, "no map is called other"},
		{[]string{"ct"}, "auto", false, "write MAP=hook or MAP=scan"},
		{[]string{"hook"}, "auto", false, "write MAP=hook or MAP=scan"},
		{[]string{"ct=yes"}, "auto", false, "write MAP=hook or MAP=scan"},
		{[]string{"=hook"}, "auto", false, "write MAP=hook or MAP=scan"},
	} {
		c := Default()
		c.Maps, c.InPlace, c.Attach = []string{"ct", "nat=pin:/sys/fs/bpf/n"}, tt.entries, tt.attach
		if got := c.HooksInPlace("ct"); got != tt.hooks {
			t.Errorf("in-place %v: got hook %v, want %v", tt.entries, got, tt.hooks)
		}
		if got, want := c.HooksAnyInPlace(), c.HooksInPlace("ct") || c.HooksInPlace("nat"); got != want {
			t.Errorf("in-place %v: got hook for any map %v, want %v", tt.entries, got, want)
		}
		err := c.Validate()
		if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("in-place %v with attach %s: got error %v, want %q", tt.entries, tt.attach, err, tt.problem)
		}
	}
}
