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

// listFile names the mutants of a package that need no test: one a line, its key, "=>",
// "equivalent:" or "accepted:", and the reason. A key that ends with * stands for all that
// begin like it.
const listFile = "testdata/mutants.list"

// verdict is what the list says of a mutant.
type verdict struct {
	equivalent bool // no test can tell it from the code: it does not count
	reason     string
}

// verdicts is a package's list, by key.
type verdicts map[string]verdict

// find returns the key under which a mutant is listed.
func (l verdicts) find(m *Mutant) (key string, ok bool) {
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

// of returns what the list says of a mutant; the zero verdict if it is not listed.
func (l verdicts) of(m *Mutant) verdict {
	key, _ := l.find(m)
	return l[key]
}

// readList reads the list of a package. A package without a list has none.
func readList(dir string) (verdicts, error) {
	f, err := os.Open(filepath.Join(dir, listFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read list of mutants: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	list := make(verdicts)
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
		list[key] = verdict{kind == "equivalent", reason}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read list of mutants: %w", err)
	}
	return list, nil
}

// stale returns the keys that none of the mutants has, sorted.
func (l verdicts) stale(mutants []Mutant) (keys []string) {
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
