package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mapsync/syncd/config"

	"github.com/spf13/pflag"
)

func TestProfilesAreComplete(t *testing.T) {
	names := config.Profiles()
	if len(names) < 4 || !slices.IsSorted(names) {
		t.Errorf("profiles: got %q, want at least 4 in order", names)
	}
	for _, name := range names {
		p, err := config.ReadProfile(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if p.Name != name || p.For == "" || p.Gains == "" || p.Limits == "" || len(p.EntrySizes) == 0 || !strings.Contains(p.Text(), "profile: "+name) {
			t.Errorf("profile %s: got %+v, want its name, its load balancer, what users gain, limits and sizes", name, p)
		}
		if len(p.For) > 70 {
			t.Errorf("profile %s: the load balancer takes %d characters, want at most 70", name, len(p.For))
		}
		c, err := config.ReadWithProfile("", name)
		if err != nil {
			t.Error(err)
			continue
		}
		if err := c.ValidateMaps(); err != nil {
			t.Errorf("profile %s: %v", name, err)
		}
	}
}

// TestProfileOfANode: settings of the node take precedence over those of its profiles.
func TestProfileOfANode(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "mine.yaml")
	if err := os.WriteFile(mine, []byte("profile: mine\nmap: ['two=name:x[0-1]']\nfield: ['two:a=ktime', 'two:b=as:x when c=1', 'two:b=as:y']\nin-place: ['two=hook']\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "syncd.yaml")
	text := "profile: [xdp-filter, '" + mine + "']\nmap: ['filter_ipv4=/sys/fs/bpf/own']\nfield: ['filter_ipv4:value.value=none', 'two:b=volatile']\ndeletes: ['filter_ipv4=owner']\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Read(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ValidateMaps(); err != nil {
		t.Error(err)
	}
	maps := []string{
		"filter_ipv4=/sys/fs/bpf/own", "/sys/fs/bpf/xdp-filter/filter_ports", "/sys/fs/bpf/xdp-filter/filter_ipv6",
		"/sys/fs/bpf/xdp-filter/filter_ethernet", "two.0=name:x[0]", "two.1=name:x[1]",
	}
	if !slices.Equal(c.Maps, maps) {
		t.Errorf("maps: got %q, want %q", c.Maps, maps)
	}
	of := func(prefix string) (list []string) {
		for _, s := range c.Fields {
			if strings.HasPrefix(s, prefix) {
				list = append(list, s)
			}
		}
		return list
	}
	if got := of("filter_ipv4:value"); !slices.Equal(got, []string{"filter_ipv4:value.value=none"}) {
		t.Errorf("fields of the value: got %q, want the node's", got)
	}
	if got := of("two.1:"); !slices.Equal(got, []string{"two.1:b=volatile", "two.1:a=ktime"}) {
		t.Errorf("fields of an inner map: got %q, want the node's b and the profile's a", got)
	}
	if c.DeletesAny("filter_ipv4") || !c.DeletesAny("filter_ipv6") {
		t.Error("deletes: want owner for the node's map, and any for the profile's")
	}
	if !c.IsOptional("filter_ipv4") || c.IsOptional("two.0") {
		t.Error("optional maps: want those of the profile")
	}
	if err := c.CheckEntrySize("filter_ipv6", 16, 8); err != nil {
		t.Error(err)
	}
	if err := c.CheckEntrySize("filter_ipv6", 16, 16); err == nil || !strings.Contains(err.Error(), "have 16+16 bytes, and entry-size has 16+8") {
		t.Errorf("another size: got error %v, want one with both sizes", err)
	}
	if !c.HooksInPlace("two.0") {
		t.Error("in-place of an inner map: want hook")
	}
}

func TestProfilesRefused(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, want := range map[string]string{
		"loxlib":                    "it is unknown: choose one of calico, cilium-egress, cilium-l4lb, einat, katran, loxilb, xdp-filter, or the path of a file",
		filepath.Join(dir, "none"):  "no such file",
		dir + "/":                   "regular file",
		write("empty", ""):          "no profile or no map",
		write("other", "profil: x"): "unknown field",
		write("node", "profile: x\nmap: [/a]\njoin: [b]\n"): "unknown field",
	} {
		if _, err := config.ReadProfile(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("read profile %s: got error %v, want one with %q", name, err, want)
		}
	}
	flags := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	c := config.Default()
	c.Bind(flags)
	same := write("same", "profile: same\nmap: [/x/ct_map]\n")
	if err := flags.Parse([]string{"--profile=loxilb", "--profile=" + same}); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Read("", flags); err == nil || !strings.Contains(err.Error(), "profiles loxilb and same both have a map ct_map") {
		t.Errorf("two profiles of one map: got error %v, want one that names both", err)
	}
	for _, setting := range []string{"optional-map=none", "entry-size=ct_map=48", "entry-size=ct_map=48+0", "entry-size=none=4+8", "entry-size=ct_map=48+280,x"} {
		name, value, _ := strings.Cut(setting, "=")
		flags := pflag.NewFlagSet("settings", pflag.ContinueOnError)
		c := config.Default()
		c.Bind(flags)
		if err := flags.Parse([]string{"--profile=loxilb", "--" + name + "=" + value}); err != nil {
			t.Fatal(err)
		}
		if c, err := config.Read("", flags); err != nil || c.ValidateMaps() == nil {
			t.Errorf("setting %s: got error %v of the profile, want nil, and an error of the value", setting, err)
		}
	}
}
