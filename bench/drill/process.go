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

// process is one program of the drill, in its namespace. It dies with the
// drill.
type process struct {
	name    string
	cmd     *exec.Cmd
	in      *json.Encoder
	reports chan report   // closed when the program has nothing more to say
	done    chan struct{} // closed when it has ended; err is set then
	err     error
}

// startRole starts this executable as one of the drill's parts and gives it its
// first order.
func startRole(ns *netns.NS, role string, first order) (*process, error) {
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
	if err := p.start(ns, kind, func() { p.listen(out) }); err != nil {
		return nil, err
	}
	if err := p.order(first); err != nil {
		return nil, errors.Join(err, p.kill())
	}
	return p, nil
}

// startProgram starts some other program; it speaks on standard error only.
func startProgram(ns *netns.NS, kind work, name, path string, args ...string) (*process, error) {
	p := newProcess(name, exec.Command(path, args...))
	return p, p.start(ns, kind, func() {})
}

func newProcess(name string, cmd *exec.Cmd) *process {
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return &process{name: name, cmd: cmd, done: make(chan struct{})}
}

func (p *process) start(ns *netns.NS, kind work, listen func()) error {
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

// listen hands reports on until the program closes its output.
func (p *process) listen(out io.Reader) {
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

func (p *process) order(o order) error {
	if err := p.in.Encode(o); err != nil {
		return fmt.Errorf("tell %s: %w", p.name, err)
	}
	return nil
}

// ready waits until the program has done as it was told.
func (p *process) ready() (report, error) {
	r, err := p.answer()
	if err == nil && !r.Ready {
		err = fmt.Errorf("%s is not ready", p.name)
	}
	return r, err
}

// answer returns the next report of a program that speaks only when asked.
func (p *process) answer() (report, error) {
	r, ok := <-p.reports
	switch {
	case !ok:
		return r, fmt.Errorf("%s ended before it answered", p.name)
	case r.Error != "":
		return r, fmt.Errorf("%s: %s", p.name, r.Error)
	}
	return r, nil
}

// kill ends the program with SIGKILL and waits until the kernel has let go of
// everything that it held. Killing what has ended is no error.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	for open := p.reports != nil; open; { // a program that reports must not wait for us
		_, open = <-p.reports
	}
	<-p.done
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	return nil
}

// why says what a program that ended by itself ended of.
func (p *process) why() error {
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
