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

// outcome is the result for one mutant.
type outcome struct {
	Key     string `json:"key"`
	Killed  bool   `json:"killed"`
	By      string `json:"by,omitempty"`   // the test that detected it
	Slow    bool   `json:"slow,omitempty"` // the test took long, because it waited for an event that did not occur
	Reached int    `json:"reached"`        // number of tests that reach it
}

// savedResults stores the results for one version of a package, so that a stopped run can be
// continued. It is safe for concurrent use.
type savedResults struct {
	mu       sync.Mutex
	file     *os.File
	outcomes map[string]outcome
	path     string
	// killers maps a mutant's key to the test that quickly detected it in any version of the package.
	// try runs that test first.
	killers     map[string]string
	killersFile *os.File
}

// openResults opens the saved results of the package's current version in dir.
func openResults(s *source, dir string, fresh bool) (*savedResults, error) {
	version, err := s.version()
	if err != nil {
		return nil, err
	}
	base := filepath.Join(dir, strings.ReplaceAll(s.path, "/", "_"))
	st := &savedResults{outcomes: map[string]outcome{}, path: base + "-" + version, killers: map[string]string{}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	if fresh {
		if err := os.RemoveAll(st.path + ".jsonl"); err != nil {
			return nil, fmt.Errorf("remove state: %w", err)
		}
	}
	if st.file, err = openLines(st.path+".jsonl", func(o outcome) { st.outcomes[o.Key] = o }); err != nil {
		return nil, err
	}
	st.killersFile, err = openLines(base+".finders.jsonl", func(o outcome) { st.killers[o.Key] = o.By })
	return st, err
}

// openLines reads the outcomes in a file and opens the file for appending.
func openLines(path string, each func(outcome)) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var o outcome
		if json.Unmarshal(lines.Bytes(), &o) == nil { // the last line may be incomplete
			each(o)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return f, nil
}

func (st *savedResults) close() {
	_ = st.file.Close() // each line is already written
	_ = st.killersFile.Close()
}

// killer returns the test that last detected a mutant, or "" if there is none.
func (st *savedResults) killer(key string) string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.killers[key]
}

func (st *savedResults) get(key string) (outcome, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	o, ok := st.outcomes[key]
	return o, ok
}

func (st *savedResults) put(o outcome) error {
	line, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode outcome: %w", err)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.outcomes[o.Key] = o
	line = append(line, '\n')
	if _, err := st.file.Write(line); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if o.By == "" || o.Slow || st.killers[o.Key] == o.By {
		return nil
	}
	st.killers[o.Key] = o.By
	if _, err := st.killersFile.Write(line); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// tests returns the saved test records. If there are none, it calls record and saves the result. The
// mutant numbers refer to the same version of the package.
func (st *savedResults) tests(record func() ([]test, error)) ([]test, error) {
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

// version returns a hash of the package's code, its tests with the packages in subfolders that they import,
// and the mutation runtime.
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
