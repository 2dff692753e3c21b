package mutate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// program is the test binary with all mutants of a package.
type program struct {
	source  *source
	mutants []Mutant
	path    string // of the binary
	dir     string // working directory of the runs: failing tests may write to their testdata
}

// maxBuilds bounds the number of builds that omit mutants which do not compile.
const maxBuilds = 8

var compileError = regexp.MustCompile(`(?m)^(?:.*/)?([\w.-]+\.go):(\d+):\d+: `)

// build compiles the package's tests with its mutants. It omits mutants that do not compile.
func build(s *source, work string) (*program, error) {
	dropped := make(map[string]bool)
	skip := func(m *Mutant) bool { return dropped[m.File+":"+strconv.Itoa(m.Line)] }
	for range maxBuilds {
		in := instrument(s, skip)
		p := &program{source: s, mutants: in.mutants, path: filepath.Join(work, "mutants.test"), dir: filepath.Join(work, "run")}
		output, err := p.compile(in, work)
		if err == nil {
			return p, p.copyData()
		}
		found := false
		for _, m := range compileError.FindAllStringSubmatch(output, -1) {
			place := m[1] + ":" + m[2]
			found = found || !dropped[place]
			dropped[place] = true
		}
		if !found {
			return nil, fmt.Errorf("build mutants of %s: %w\n%s", s.path, err, output)
		}
	}
	return nil, fmt.Errorf("build mutants of %s: they do not compile", s.path)
}

// compile writes the changed files and builds the test binary from them.
func (p *program) compile(in *instrumented, work string) (output string, err error) {
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, text := range in.files {
		changed := filepath.Join(work, name)
		if err := os.WriteFile(changed, []byte(text), 0o644); err != nil {
			return "", fmt.Errorf("write mutants: %w", err)
		}
		overlay.Replace[filepath.Join(p.source.dir, name)] = changed
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return "", fmt.Errorf("encode overlay: %w", err)
	}
	file := filepath.Join(work, "overlay.json")
	if err := os.WriteFile(file, list, 0o644); err != nil {
		return "", fmt.Errorf("write overlay: %w", err)
	}
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-gcflags="+p.source.path+"=-e", "-overlay", file, "-o", p.path, ".")
	cmd.Dir = p.source.dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// copyData copies the package's testdata to the working directory.
func (p *program) copyData() error {
	from := filepath.Join(p.source.dir, "testdata")
	if _, err := os.Stat(from); err != nil {
		return os.MkdirAll(p.dir, 0o755)
	}
	if err := os.CopyFS(filepath.Join(p.dir, "testdata"), os.DirFS(from)); err != nil {
		return fmt.Errorf("copy testdata: %w", err)
	}
	return nil
}

// tests returns the names of the package's tests.
func (p *program) tests() ([]string, error) {
	cmd := exec.Command(p.path, "-test.list", "^(Test|Fuzz|Example)")
	cmd.Dir = p.dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list tests of %s: %w", p.source.path, err)
	}
	var names []string
	for line := range bytes.Lines(out) {
		names = append(names, string(bytes.TrimSpace(line)))
	}
	return names, nil
}

// run runs tests until one fails. If a test fails or times out, it returns the name of that test and
// false.
func (p *program) run(names []string, limit time.Duration, env ...string) (failed string, passed bool, err error) {
	pattern := "^("
	for i, name := range names {
		if i > 0 {
			pattern += "|"
		}
		pattern += regexp.QuoteMeta(name)
	}
	last := lastTest{name: names[0]}
	cmd := exec.Command(p.path, "-test.run", pattern+")$", "-test.short", "-test.failfast", "-test.v", "-test.timeout", limit.String())
	cmd.Dir, cmd.Stdout = p.dir, &last
	cmd.Env = append(os.Environ(), env...)
	err = cmd.Start()
	if err != nil {
		return "", false, fmt.Errorf("run tests: %w", err)
	}
	// The test's own time limit needs a working scheduler, which a mutant may block.
	kill := time.AfterFunc(limit+10*time.Second, func() { _ = cmd.Process.Kill() })
	err = cmd.Wait()
	kill.Stop()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", false, fmt.Errorf("run tests: %w", err)
	}
	return last.name, err == nil, nil
}

// lastTest parses test output and stores the name of the test that started last.
type lastTest struct {
	name string
	line []byte // the last, incomplete line
}

// maxLine bounds the stored part of a line in bytes.
const maxLine = 256

func (l *lastTest) Write(b []byte) (int, error) {
	for part := range bytes.Lines(b) {
		if len(l.line) < maxLine {
			l.line = append(l.line, part...)
		}
		if part[len(part)-1] != '\n' {
			continue
		}
		if name, ok := bytes.CutPrefix(l.line, []byte("=== RUN ")); ok {
			name, _, _ = bytes.Cut(bytes.TrimSpace(name), []byte("/"))
			l.name = string(name)
		}
		l.line = l.line[:0]
	}
	return len(b), nil
}
