package handbook

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Shell executes the steps of a page in one bash process. Variables, functions, the current directory
// and background processes of a step therefore exist in the following steps.
type Shell struct {
	cmd      *exec.Cmd
	commands io.WriteCloser
	results  *os.File
	lines    chan string // lines of results; closed at its end
	scratch  string
	count    int
}

// preamble prepares the shell. The trap on ERR notes the first command of a step that fails, by the
// rules of set -e. The trap on EXIT ends all processes if the test process ends early.
const preamble = `set -E
trap 'handbook_code=$?; [[ -n $handbook_result ]] || printf -v handbook_result "%d %q" "$handbook_code" "$BASH_COMMAND"' ERR
trap 'kill -KILL 0' EXIT
`

// StartShell starts bash by start, which is (*exec.Cmd).Start or a function that also changes the
// network namespace. prepare may set the directory and the environment of the command. The shell stores
// files in the directory scratch, which must exist. The caller must close the shell.
func StartShell(scratch string, prepare func(*exec.Cmd), start func(*exec.Cmd) error) (*Shell, error) {
	cmd := exec.Command("bash", "--norc", "--noprofile")
	prepare(cmd)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	commands, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start shell: %w", err)
	}
	results, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start shell: %w", err)
	}
	cmd.ExtraFiles = []*os.File{write} // descriptor 3 of the shell
	err = start(cmd)
	if err = errors.Join(err, write.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("start shell: %w", err), results.Close())
	}
	s := &Shell{cmd: cmd, commands: commands, results: results, lines: make(chan string), scratch: scratch}
	go s.read()
	if _, err := io.WriteString(commands, preamble); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare shell: %w", err), s.Close())
	}
	return s, nil
}

func (s *Shell) read() {
	defer close(s.lines)
	for lines := bufio.NewScanner(s.results); lines.Scan(); {
		s.lines <- lines.Text()
	}
}

// Result is the result of the commands of a step.
type Result struct {
	// Output is the standard output and the standard error.
	Output string
	// Exit is the exit code of the first command that failed, and Failed its text. Exit is 0 if none
	// failed.
	Exit   int
	Failed string
}

// Run executes commands and returns their result. It returns an error, with the output so far, if ctx
// ends or the shell ends. The shell is not usable afterwards.
func (s *Shell) Run(ctx context.Context, commands string) (r Result, err error) {
	s.count++
	script := filepath.Join(s.scratch, fmt.Sprintf("step%d", s.count))
	// The last line makes the source command itself succeed.
	if err := os.WriteFile(script, []byte(commands+"\n:\n"), 0o600); err != nil {
		return r, fmt.Errorf("write commands: %w", err)
	}
	if err := os.WriteFile(script+".out", nil, 0o600); err != nil {
		return r, fmt.Errorf("write commands: %w", err)
	}
	defer func() {
		output, readErr := os.ReadFile(script + ".out")
		r.Output, err = string(output), errors.Join(err, readErr)
	}()
	_, err = fmt.Fprintf(s.commands, "handbook_result=; . %[1]q </dev/null >%[1]q.out 2>&1 3>&-; echo \"$handbook_result\" >&3\n", script)
	if err != nil {
		return r, fmt.Errorf("run commands: %w", err)
	}
	select {
	case <-ctx.Done():
		return r, fmt.Errorf("run commands: %w", ctx.Err())
	case line, ok := <-s.lines:
		if !ok {
			return r, errors.New("run commands: the shell has ended")
		}
		if code, command, failed := strings.Cut(line, " "); failed {
			r.Failed = command
			if r.Exit, err = strconv.Atoi(code); err != nil {
				return r, fmt.Errorf("read exit code: %w", err)
			}
		}
	}
	return r, nil
}

// retryInterval is the time between two executions of a step.
const retryInterval = 200 * time.Millisecond

// RunStep executes a step until ctx ends, and returns an error if its exit code or its output differs
// from the page. It repeats only steps that permit it.
func (s *Shell) RunStep(ctx context.Context, step Step) error {
	var difference error // of the last complete execution
	for {
		r, err := s.Run(ctx, step.Commands)
		if err == nil {
			difference = step.check(r)
			err = difference
		}
		if err == nil {
			return nil
		}
		if !step.Retry || ctx.Err() != nil {
			return fmt.Errorf("line %d:\n%s%w\noutput:\n%s", step.Line, step.Commands, cmp.Or(difference, err), r.Output)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// check returns an error if a result differs from the page.
func (step *Step) check(r Result) error {
	if r.Exit != step.Exit {
		return fmt.Errorf("exit code %d, want %d: %s", r.Exit, step.Exit, r.Failed)
	}
	switch {
	case !step.Shown:
		return nil
	case step.Shape:
		return CompareShape(step.Output, r.Output)
	}
	return Compare(step.Output, r.Output)
}

// Dir returns the directory in which the shell was started.
func (s *Shell) Dir() string { return s.cmd.Dir }

// Running returns the command lines of the processes that the steps have started and not ended.
func (s *Shell) Running() (list []string, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for _, path := range stats {
		pid := filepath.Base(filepath.Dir(path))
		data, err := os.ReadFile(path)
		if err != nil || pid == strconv.Itoa(s.cmd.Process.Pid) {
			continue // the process has ended, or it is the shell
		}
		// State, parent and process group follow the name, which is in parentheses.
		fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
		if len(fields) < 3 || fields[0] == "Z" || fields[2] != strconv.Itoa(s.cmd.Process.Pid) {
			continue
		}
		line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err == nil {
			list = append(list, pid+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return list, nil
}

// Close ends the shell and all processes that its steps have started.
func (s *Shell) Close() error {
	err := syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	_ = s.commands.Close()
	for range s.lines { // a step that was not awaited
	}
	if waited := s.cmd.Wait(); waited != nil {
		if _, killed := errors.AsType[*exec.ExitError](waited); !killed {
			err = errors.Join(err, waited)
		}
	}
	if err = errors.Join(err, s.results.Close()); err != nil {
		return fmt.Errorf("close shell: %w", err)
	}
	return nil
}
