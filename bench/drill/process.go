package drill

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"mapsync/internal/netns"
)

// process is one program of the drill, in its namespace. It ends when the drill ends.
type process struct {
	name    string
	cmd     *exec.Cmd
	in      *json.Encoder
	reports chan report   // closed when the program closes its output
	done    chan struct{} // closed when the program has exited; err is set before
	err     error
}

// startRole starts this executable in a role of the drill and sends its first command.
func startRole(ns *netns.NS, role string, first command) (*process, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	p := newProcess(ns.Name()+" "+role, cmd)
	p.in = json.NewEncoder(in)
	p.reports = make(chan report, 16)
	kind := traffic
	if role == roleBalancer {
		kind = control
	}
	if err := p.start(ns, kind, func() { p.readReports(out) }); err != nil {
		return nil, err
	}
	if err := p.send(first); err != nil {
		return nil, errors.Join(err, p.kill())
	}
	return p, nil
}

// startProgram starts another program, which writes only to standard error.
func startProgram(ns *netns.NS, kind cpuRole, name, path string, args ...string) (*process, error) {
	p := newProcess(name, exec.Command(path, args...))
	return p, p.start(ns, kind, func() {})
}

func newProcess(name string, cmd *exec.Cmd) *process {
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return &process{name: name, cmd: cmd, done: make(chan struct{})}
}

func (p *process) start(ns *netns.NS, kind cpuRole, listen func()) error {
	if err := ns.Do(func() error { return kind.startOn(p.cmd) }); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		listen()
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return nil
}

// readReports forwards reports until the program closes its output.
func (p *process) readReports(out io.Reader) {
	defer close(p.reports)
	in := json.NewDecoder(out)
	for {
		var r report
		if err := in.Decode(&r); err != nil {
			return
		}
		p.reports <- r
	}
}

func (p *process) send(o command) error {
	if err := p.in.Encode(o); err != nil {
		return fmt.Errorf("send command to %s: %w", p.name, err)
	}
	return nil
}

// ready waits until the program reports that it is ready.
func (p *process) ready() (report, error) {
	r, err := p.nextReport()
	if err == nil && !r.Ready {
		err = fmt.Errorf("%s is not ready", p.name)
	}
	return r, err
}

// nextReport returns the next report of a program that reports only on request.
func (p *process) nextReport() (report, error) {
	r, ok := <-p.reports
	switch {
	case !ok:
		return r, fmt.Errorf("%s ended before it answered", p.name)
	case r.Error != "":
		return r, fmt.Errorf("%s: %s", p.name, r.Error)
	}
	return r, nil
}

// kill ends the program with SIGKILL and waits until the kernel has released all its resources. It
// returns no error if the program has already exited.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	for open := p.reports != nil; open; { // unblocks a program that is writing a report
		_, open = <-p.reports
	}
	<-p.done
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	return nil
}

// exitReason returns the reason why a program exited by itself.
func (p *process) exitReason() error {
	for p.reports != nil {
		r, ok := <-p.reports
		if !ok {
			break
		}
		if r.Error != "" {
			return errors.New(r.Error)
		}
	}
	if p.err != nil {
		return p.err
	}
	return errors.New("exit status 0")
}
