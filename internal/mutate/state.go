package mutate

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// outcome is what became of a mutant.
type outcome struct {
	Key     string `json:"key"`
	Killed  bool   `json:"killed"`
	By      string `json:"by,omitempty"` // the tests that ran when it was found
	Reached int    `json:"reached"`      // by how many tests
}

// state keeps what is known of one version of a package, so that a run that was
// stopped can be taken up. Safe for concurrent use.
type state struct {
	mu    sync.Mutex
	file  *os.File
	known map[string]outcome
	path  string
}

// openState opens the state of the package's present version in dir.
func openState(s *source, dir string, fresh bool) (*state, error) {
	version, err := s.version()
	if err != nil {
		return nil, err
	}
	st := &state{known: map[string]outcome{}, path: filepath.Join(dir, strings.ReplaceAll(s.path, "/", "_")+"-"+version)}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	if fresh {
		if err := os.RemoveAll(st.path + ".jsonl"); err != nil {
			return nil, fmt.Errorf("remove state: %w", err)
		}
	}
	if st.file, err = os.OpenFile(st.path+".jsonl", os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	lines := bufio.NewScanner(st.file)
	for lines.Scan() {
		var o outcome
		if json.Unmarshal(lines.Bytes(), &o) == nil { // the last line may be torn
			st.known[o.Key] = o
		}
	}
	return st, lines.Err()
}

func (st *state) get(key string) (outcome, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	o, ok := st.known[key]
	return o, ok
}

func (st *state) put(o outcome) error {
	line, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode outcome: %w", err)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.known[o.Key] = o
	if _, err := st.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// tests returns what a run has recorded, or has record do so. The mutants' numbers
// are those of the same version of the package.
func (st *state) tests(record func() ([]test, error)) ([]test, error) {
	path := st.path + ".tests.json"
	var tests []test
	b, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(b, &tests) == nil {
		return tests, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read recorded tests: %w", err)
	}
	if tests, err = record(); err != nil {
		return nil, err
	}
	if b, err = json.Marshal(tests); err != nil {
		return nil, fmt.Errorf("encode recorded tests: %w", err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		return nil, fmt.Errorf("write recorded tests: %w", err)
	}
	return tests, nil
}

// version names the package's code, tests and mutants.
func (s *source) version() (string, error) {
	h := sha256.New()
	h.Write([]byte(runtimeText))
	names := slices.Concat(s.names, s.tests)
	slices.Sort(names)
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil {
			return "", fmt.Errorf("read source: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}
