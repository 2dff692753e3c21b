package drill

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/bench/lb"
)

// Netperf uses two connections for each test: a control connection to netserver's port, and a data connection to a port
// that the caller chooses. Both go through the load balancer, which has a service for each port.
const (
	netperfControlPort = 12865
	netperfFirstPort   = 20000
	maxNetperfSessions = 1000
)

// netperfServices returns the services that n tests at the same time need. All have the first backend: a test uses one
// netserver.
func netperfServices(n int) []lb.Service {
	list := make([]lb.Service, 0, n+1)
	add := func(port int) {
		list = append(list, lb.Service{
			VIP:      netip.AddrPortFrom(service().Addr(), uint16(port)),
			Backends: []netip.AddrPort{netip.AddrPortFrom(backends()[0].Addr(), uint16(port))},
		})
	}
	add(netperfControlPort)
	for i := range n {
		add(netperfFirstPort + i)
	}
	return list
}

// startNetserver starts netserver on the first backend.
func (t *tools) startNetserver(n *network) (*process, error) {
	return startProgram(n.backends, traffic, "netserver", t.netserver,
		"-D", "-4", "-L", backends()[0].Addr().String(), "-p", fmt.Sprint(netperfControlPort))
}

// netperfArgs returns the arguments of test number i.
func netperfArgs(vip netip.Addr, i int, kind string, global ...string) []string {
	args := append([]string{"-4", "-H", vip.String(), "-p", fmt.Sprint(netperfControlPort), "-t", kind, "-P", "0"}, global...)
	return append(args, "--", "-P", fmt.Sprintf("0,%d", netperfFirstPort+i))
}

// awaitNetserver returns after netserver has accepted a connection through the load balancer.
func awaitNetserver(vip netip.Addr, limit time.Duration) error {
	addr := netip.AddrPortFrom(vip, netperfControlPort).String()
	for late := time.Now().Add(limit); ; time.Sleep(pollInterval) {
		conn, err := net.DialTimeout("tcp", addr, limit)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(late) {
			return fmt.Errorf("wait for netserver: %w", err)
		}
	}
}

// netperfConfig configures the sessions of netperf. Each session is a TCP_RR test, without a time limit that matters.
type netperfConfig struct {
	Program      string        `json:"program"`
	VIP          netip.Addr    `json:"vip"`
	Sessions     int           `json:"sessions"`
	Fresh        int           `json:"fresh"`
	StallTimeout time.Duration `json:"stall_timeout"`
	Hold         time.Duration `json:"hold"`
}

// netperfClients drives and decides the sessions of netperf. A session survives the cut under two conditions: netperf has
// reported Fresh times that requests were answered after the cut, and its test ends without an error, which needs the
// control connection as well. Netperf does not check the contents of the answers.
type netperfClients struct {
	config   *netperfConfig
	pipe     *rolePipe
	events   chan netperfEvent
	sessions []netperfSession
	begun    int64
	cut      *cutCommand
	heldTo   int64 // the tests end after a report of each of them after this time; 0: some have not answered since the cut
	ended    bool  // endTests has run, at endedAt
	endedAt  int64
	count    counts
}

// netperfSession is one test. Times are CLOCK_MONOTONIC in ns.
type netperfSession struct {
	cmd      *exec.Cmd
	opened   bool  // requests were answered
	fresh    int   // reports about requests that began after the cut
	last     int64 // time of the last report
	decision decision
}

// netperfEvent is a report of a test, or its end.
type netperfEvent struct {
	id       int
	at       int64   // CLOCK_MONOTONIC, ns
	rate     float64 // answered requests per second
	seconds  float64 // time that the report is about
	exited   bool
	err      error  // of the exit
	complete bool   // the test printed its result
	lastLine string // on standard error
}

func runNetperf(pipe *rolePipe, o *netperfConfig) error {
	if err := raiseFileLimit(4 * o.Sessions); err != nil {
		return err
	}
	pipe.send(report{Ready: true})
	if err := awaitNetserver(o.VIP, o.StallTimeout); err != nil {
		return err
	}
	c := &netperfClients{
		config: o, pipe: pipe, events: make(chan netperfEvent, o.Sessions),
		sessions: make([]netperfSession, o.Sessions), begun: monotonic(),
	}
	defer c.killAll()
	c.count.Limit = o.StallTimeout
	for i := range c.sessions {
		if err := c.start(i); err != nil {
			return err
		}
	}
	return c.run()
}

// start starts test number i. A report covers about a second. A negative interval makes netperf compare the time after each
// request, so that it reports soon after a stall.
func (c *netperfClients) start(i int) error {
	cmd := exec.Command(c.config.Program, netperfArgs(c.config.VIP, i, "TCP_RR", "-l", "86400", "-D", "-1")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start netperf: %w", err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start netperf: %w", err)
	}
	c.sessions[i].cmd = cmd
	go func() {
		complete := c.read(i, out)
		err := cmd.Wait()
		c.events <- netperfEvent{id: i, at: monotonic(), exited: true, err: err, complete: complete, lastLine: lastLine(stderr.String())}
	}()
	return nil
}

// lastLine returns the last line of a text.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// read forwards the reports of a test until it closes its output. It reports whether the test printed its result.
func (c *netperfClients) read(i int, out io.Reader) (complete bool) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		e := netperfEvent{id: i, at: monotonic()}
		var end float64
		n, _ := fmt.Sscanf(lines.Text(), "Interim result: %f Trans/s over %f seconds ending at %f", &e.rate, &e.seconds, &end)
		if n == 3 {
			c.events <- e
		} else if _, err := parseCRR(lines.Text()); err == nil {
			complete = true
		}
	}
	return complete
}

func (c *netperfClients) killAll() {
	for i := range c.sessions {
		if cmd := c.sessions[i].cmd; cmd != nil {
			_ = cmd.Process.Kill()
		}
	}
}

func (c *netperfClients) run() error {
	reports, checks := time.NewTicker(reportEvery), time.NewTicker(reportEvery/10)
	defer reports.Stop()
	defer checks.Stop()
	for {
		select {
		case o, ok := <-c.pipe.commands:
			if !ok {
				return nil
			}
			if o.Cut != nil {
				c.cut = o.Cut
			}
		case e := <-c.events:
			c.handle(&e)
		case <-reports.C:
			c.report(report{})
		case <-checks.C:
			if c.cut != nil && c.decided(monotonic()) {
				c.report(report{Done: true})
				return nil
			}
		}
	}
}

func (c *netperfClients) report(r report) {
	snapshot := c.count
	r.Counts = &snapshot
	c.pipe.send(r)
}

func (c *netperfClients) handle(e *netperfEvent) {
	s := &c.sessions[e.id]
	if e.exited {
		c.handleExit(s, e)
		return
	}
	c.count.Exchanges += uint64(e.rate * e.seconds)
	if c.cut == nil && e.rate > 0 {
		c.count.Latency = time.Duration(float64(time.Second) / e.rate)
	}
	if !s.opened {
		s.opened = true
		if c.count.Opened++; c.count.Opened == c.config.Sessions {
			c.count.OpenTime = time.Duration(monotonic() - c.begun)
			c.report(report{Opened: true})
		}
	}
	if c.cut != nil {
		c.count.MaxStall = max(c.count.MaxStall, time.Duration(e.at-max(s.last, c.cut.Killed)))
		if e.rate > 0 && e.at-int64(e.seconds*float64(time.Second)) > c.cut.Dead {
			s.fresh++
		}
	}
	s.last = e.at
}

// handleExit decides a test that has ended: after endTests by its result, before that as lost.
func (c *netperfClients) handleExit(s *netperfSession, e *netperfEvent) {
	switch {
	case s.decision != undecided:
	case c.ended && e.err == nil && e.complete:
		s.decision = survived
		c.count.Survived++
	default:
		s.decision = reset
		c.count.Reset++
		c.explain(e.id, cmp.Or(e.err, errEnded), e.lastLine)
	}
}

func (c *netperfClients) explain(id int, err error, why string) {
	if c.count.FirstLoss == "" {
		c.count.FirstLoss = fmt.Sprintf("netperf %d: %v: %s", id, err, why)
	}
}

// decided reports whether every session is decided. It ends the tests after each of them has failed, or has answered
// requests since the cut and Hold later.
func (c *netperfClients) decided(now int64) bool {
	waiting := 0
	for i := range c.sessions {
		s := &c.sessions[i]
		if s.decision != undecided || !c.ended && s.fresh >= c.config.Fresh && s.last >= c.heldTo {
			continue
		}
		since := max(s.last, c.cut.Killed)
		if c.ended {
			since = max(since, c.endedAt)
		}
		if stall := time.Duration(now - since); stall > c.config.StallTimeout {
			c.stall(i, stall)
			continue
		}
		waiting++
	}
	switch {
	case waiting > 0:
		return false
	case c.ended:
		return true
	case c.heldTo == 0 && c.count.lost() < len(c.sessions):
		c.heldTo = now + int64(c.config.Hold)
	default:
		c.ended, c.endedAt = true, now
		c.endTests()
	}
	return false
}

// stall counts a session without an answer within the limit, and kills its test.
func (c *netperfClients) stall(i int, stall time.Duration) {
	s := &c.sessions[i]
	s.decision = stalled
	c.count.Stalled++
	c.count.MaxStall = max(c.count.MaxStall, stall)
	c.explain(i, errNoAnswer, "")
	_ = s.cmd.Process.Kill()
}

// endTests ends the remaining tests as their own timer would: netperf then closes the data connection, asks netserver for
// its result on the control connection, and prints the result.
func (c *netperfClients) endTests() {
	for i := range c.sessions {
		if s := &c.sessions[i]; s.decision == undecided {
			if err := s.cmd.Process.Signal(unix.SIGALRM); err != nil && !errors.Is(err, os.ErrProcessDone) {
				c.explain(i, err, "")
			}
		}
	}
}
