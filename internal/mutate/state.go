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
	By      string `json:"by,omitempty"`   // the test that found it
	Slow    bool   `json:"slow,omitempty"` // the test ran for long: it waited for what did not come
	Reached int    `json:"reached"`        // by how many tests
}

// state keeps what is known of one version of a package, so that a run that was
// stopped can be taken up. Safe for concurrent use.
type state struct {
	mu    sync.Mutex
	file  *os.File
	known map[string]outcome
	path  string
	// finders are the tests that found mutants soon in any version of the package, by key.
	// They run first.
	finders map[string]string
	found   *os.File
}

// openState opens the state of the package's present version in dir.
func openState(s *source, dir string, fresh bool) (*state, error) {
	version, err := s.version()
	if err != nil {
		return nil, err
	}
	base := filepath.Join(dir, strings.ReplaceAll(s.path, "/", "_"))
	st := &state{known: map[string]outcome{}, path: base + "-" + version, finders: map[string]string{}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	if fresh {
		if err := os.RemoveAll(st.path + ".jsonl"); err != nil {
			return nil, fmt.Errorf("remove state: %w", err)
		}
	}
	if st.file, err = openLines(st.path+".jsonl", func(o outcome) { st.known[o.Key] = o }); err != nil {
		return nil, err
	}
	st.found, err = openLines(base+".finders.jsonl", func(o outcome) { st.finders[o.Key] = o.By })
	return st, err
}

// openLines reads the outcomes in a file, and opens it for more.
func openLines(path string, each func(outcome)) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var o outcome
		if json.Unmarshal(lines.Bytes(), &o) == nil { // the last line may be torn
			each(o)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return f, nil
}

func (st *state) close() {
	_ = st.file.Close() // each line was written
	_ = st.found.Close()
}

// finder returns the test that found a mutant last, empty if none did.
func (st *state) finder(key string) string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.finders[key]
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
	line = append(line, '\n')
	if _, err := st.file.Write(line); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if o.By == "" || o.Slow || st.finders[o.Key] == o.By {
		return nil
	}
	st.finders[o.Key] = o.By
	if _, err := st.found.Write(line); err != nil {
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
