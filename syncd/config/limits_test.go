package config

import (
	"math"
	"testing"
)

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "512": 512, "512B": 512, "1KiB": 1 << 10, "512MiB": 512 << 20, "2 GiB": 2 << 30, "1TiB": 1 << 40,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("parse size %q: got %d, error %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "B", "MiB", "-1", "1.5GiB", "512MB", "9999999TiB", "0x10", "1i"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("parse size %q: got %d, want an error", text, n)
		}
	}
}

func TestMemoryLimitBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": 0, "off": math.MaxInt64, "64MiB": 64 << 20} {
		c := Config{MemoryLimit: text}
		if got, err := c.MemoryLimitBytes(); err != nil || got != want {
			t.Errorf("memory limit %q: got %d, error %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"0", "1MiB", "none"} {
		c := Config{MemoryLimit: text}
		if _, err := c.MemoryLimitBytes(); err == nil {
			t.Errorf("memory limit %q: got no error, want one", text)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	f.Add("512MiB")
	f.Add("9223372036854775807")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseSize(text); err == nil && n < 0 {
			t.Errorf("parse size %q: got %d, want at least 0", text, n)
		}
	})
}

func TestMapAccess(t *testing.T) {
	t.Parallel()
	c := Default()
	c.Maps, c.ReadFrom, c.WriteFrom = []string{"ct_map", "x=id:7"}, []string{"ct_map=lb*,edge?"}, []string{"x=lb1", "x=lb2"}
	if err := c.validateTrust(); err != nil {
		t.Error(err)
	}
	if got := AccessOf(c.ReadFrom, "ct_map"); len(got) != 2 || got[1] != "edge?" {
		t.Errorf("read-from of ct_map: got %q, want lb* and edge?", got)
	}
	if got := AccessOf(c.WriteFrom, "x"); len(got) != 2 || got[1] != "lb2" {
		t.Errorf("write-from of x: got %q, want lb1 and lb2", got)
	}
	if got := AccessOf(c.WriteFrom, "ct_map"); got != nil {
		t.Errorf("write-from of ct_map: got %q, want nil", got)
	}
	for _, bad := range []string{"", "ct_map", "ct_map=", "=lb1", "ct_map=lb1,", "ct_map=[", "ct_map=lb[1.2]", "other=lb1"} {
		c.ReadFrom = []string{bad}
		if c.validateTrust() == nil {
			t.Errorf("validate read-from %q: got no error, want one", bad)
		}
	}
}

func FuzzParseMapAccess(f *testing.F) {
	f.Add("ct_map=lb*,edge?")
	f.Add("a=[")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseMapAccess("read-from", text)
		if err == nil && (a.Map == "" || len(a.Patterns) == 0) {
			t.Errorf("parse map access %q: got %+v, want a map and patterns, or an error", text, a)
		}
	})
}
