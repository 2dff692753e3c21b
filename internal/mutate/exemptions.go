package mutate

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// listFile lists the mutants of a package that need no test. Each line contains the mutant's key,
// "=>", "equivalent:" or "accepted:", and the reason. A key that ends with * matches all keys with
// that prefix.
const listFile = "testdata/mutants.list"

// exemption is an entry of the list.
type exemption struct {
	equivalent bool // the mutant behaves like the original code and does not count
	reason     string
}

// exemptions is a package's list, by key.
type exemptions map[string]exemption

// find returns the key of the entry that matches a mutant.
func (l exemptions) find(m *Mutant) (key string, ok bool) {
	key = m.Key()
	if _, ok := l[key]; ok {
		return key, true
	}
	for pattern := range l {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok && strings.HasPrefix(key, prefix) {
			return pattern, true
		}
	}
	return "", false
}

// get returns the entry for a mutant, or the zero value if the mutant is not listed.
func (l exemptions) get(m *Mutant) exemption {
	key, _ := l.find(m)
	return l[key]
}

// readExemptions reads the list of a package. It returns no entries for a package without a list.
func readExemptions(dir string) (exemptions, error) {
	f, err := os.Open(filepath.Join(dir, listFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read list of mutants: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	list := make(exemptions)
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, rest, ok := strings.Cut(line, " => ")
		kind, reason, found := strings.Cut(rest, ": ")
		if !ok || !found || reason == "" || kind != "equivalent" && kind != "accepted" {
			return nil, fmt.Errorf("read list of mutants: %s:%d: want: key => equivalent|accepted: reason", f.Name(), n)
		}
		list[key] = exemption{kind == "equivalent", reason}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read list of mutants: %w", err)
	}
	return list, nil
}

// unused returns the keys that match none of the mutants, sorted.
func (l exemptions) unused(mutants []Mutant) (keys []string) {
	used := make(map[string]bool)
	for i := range mutants {
		if key, ok := l.find(&mutants[i]); ok {
			used[key] = true
		}
	}
	for key := range l {
		if !used[key] {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
