package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/syncd/config"

	"github.com/cilium/ebpf"
)

// ownProfile writes a copy of a profile whose maps are pinned, or would be, in the directory of the workplace's map, and returns its path.
func (w *workplace) ownProfile(name string) (path string, names []string) {
	w.Helper()
	p, err := config.ReadProfile(name)
	if err != nil {
		w.Fatal(err)
	}
	text := p.Text()
	for _, s := range append(slices.Clone(p.Maps), p.Referenced...) {
		m, err := config.ParseMap(s)
		if err != nil {
			w.Fatal(err)
		}
		if slices.Contains(p.Maps, s) {
			names = append(names, m.Name)
		}
		pin := m.Name + "=" + filepath.Join(filepath.Dir(w.pin), m.Name)
		text = strings.Replace(text, s, pin, 1)
	}
	w.write(name+".yaml", text)
	return w.path(name + ".yaml"), names
}

// pinDataPlane pins a map of a data plane at its name.
func (w *workplace) pinDataPlane(m *dataplane.Map, more uint32) {
	w.Helper()
	spec := &ebpf.MapSpec{
		Type: m.Type, KeySize: uint32(m.KeySize), ValueSize: uint32(m.ValueSize), MaxEntries: 10, Key: m.Key, Value: m.Value,
	}
	if more > 0 { // another version, without types
		spec.Key, spec.Value, spec.ValueSize = nil, nil, spec.ValueSize+more
	}
	raw, err := ebpf.NewMap(spec)
	if err != nil {
		w.Fatal(err)
	}
	defer raw.Close()
	// The first map of a range stands for all.
	if err := raw.Pin(filepath.Join(filepath.Dir(w.pin), strings.TrimSuffix(m.Name, ".0"))); err != nil {
		w.Fatal(err)
	}
}

// TestProfilesCheck: a profile fits the maps of its load balancer. One that is missing, and one of another version, are found.
func TestProfilesCheck(t *testing.T) {
	for _, name := range config.Profiles() {
		t.Run(name, func(t *testing.T) {
			w := newWorkplace(t)
			file, names := w.ownProfile(name)
			p, err := config.ReadProfile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range dataplane.Referenced() {
				if slices.ContainsFunc(p.Referenced, func(s string) bool { return strings.HasSuffix(s, m.Name) }) {
					w.pinDataPlane(&m, 0)
				}
			}
			present := 0
			for _, m := range dataplane.Maps() {
				if m.Profile == name {
					w.pinDataPlane(&m, 0)
					present++
				}
			}
			out, err := run(t, "profiles", "check", file)
			if err != nil || !strings.Contains(out, "the profile fits") || strings.Count(out, " present\n") != present {
				t.Errorf("check: got error %v, want %d maps that fit\n%s", err, present, out)
			}
			if present != len(names) && !strings.Contains(out, "absent (optional)") {
				t.Errorf("check: want the maps that are absent in\n%s", out)
			}
		})
	}
	t.Run("without the maps", func(t *testing.T) {
		w := newWorkplace(t)
		file, _ := w.ownProfile("calico")
		out, err := run(t, "profiles", "check", file, "--json")
		var r profileReport
		if jsonErr := json.Unmarshal([]byte(out), &r); jsonErr != nil || exitCode(err) != exitFailed || !r.Usable || len(r.Maps) != 4 {
			t.Errorf("check: got %s, errors %v and %v, want a usable profile with 4 maps and exit code 1", out, err, jsonErr)
		}
		for i, m := range r.Maps {
			if want := i >= 2; m.Optional != want || m.Present {
				t.Errorf("map %+v: want it absent, and optional %v", m, want)
			}
		}
	})
	t.Run("without referenced maps", func(t *testing.T) {
		w := newWorkplace(t)
		file, _ := w.ownProfile("katran")
		for _, m := range dataplane.Maps() {
			if m.Profile == "katran" {
				w.pinDataPlane(&m, 0)
			}
		}
		out, err := run(t, "profiles", "check", file)
		if exitCode(err) != exitUsage || !strings.Contains(out, "reals: a field of lru refers to it: no map is pinned at") {
			t.Errorf("check: got error %v, want exit code 2 and the referenced map\n%s", err, out)
		}
	})
	t.Run("another version", func(t *testing.T) {
		w := newWorkplace(t)
		file, _ := w.ownProfile("loxilb")
		w.pinDataPlane(&dataplane.Maps()[0], 8)
		out, err := run(t, "profiles", "check", file)
		if exitCode(err) != exitUsage || !strings.Contains(out, "48+288 bytes") || !strings.Contains(out, "does not fit") {
			t.Errorf("check: got error %v, want exit code 2 and the size\n%s", err, out)
		}
	})
}

func TestProfilesShow(t *testing.T) {
	out, err := run(t, "profiles")
	for _, name := range config.Profiles() {
		if err != nil || !strings.Contains(out, "\n"+name+" ") {
			t.Errorf("list: got error %v, want %s in\n%s", err, name, out)
		}
	}
	for line := range strings.Lines(out) {
		if len(line) > 100 {
			t.Errorf("line of %d characters, want at most 100: %s", len(line), line)
		}
	}
	if out, err = run(t, "profiles", "show", "loxilb"); err != nil || !strings.HasPrefix(out, "profile: loxilb\n") {
		t.Errorf("show: got error %v, want the profile\n%s", err, out)
	}
	out, err = run(t, "profiles", "--json")
	var list []config.Profile
	if jsonErr := json.Unmarshal([]byte(out), &list); err != nil || jsonErr != nil || len(list) != len(config.Profiles()) {
		t.Errorf("list as JSON: got %d profiles, errors %v and %v, want %d", len(list), err, jsonErr, len(config.Profiles()))
	}
	expectExit(t, exitUsage, "profiles", "show", "none")
	expectExit(t, exitUsage, "profiles", "check", "none")
	expectExit(t, exitUsage, "profiles", "none")
}
