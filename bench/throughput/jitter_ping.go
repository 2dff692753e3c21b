package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"mapsync/bench/process"
	"mapsync/internal/netns"
)

// pingVariable is the environment variable that makes a process one end of the pings, or a
// processor load. Its values are "ping ADDRESS", "echo ADDRESS", "spin THREADS" and "call".
const pingVariable = "MAPSYNC_THROUGHPUT_PING"

const (
	// pingFlows TCP connections through the load balancer send one ping each per pingEvery.
	pingFlows = 20
	pingEvery = 10 * time.Millisecond
	pingBytes = 64
	// roundTripLimit is the time within which a round trip must end on a busy machine.
	roundTripLimit = 20 * time.Second
)

func runPing() (asked bool, err error) {
	role, what, _ := strings.Cut(os.Getenv(pingVariable), " ")
	switch role {
	case "":
		return false, nil
	case "echo":
		return true, echo(what)
	case "ping":
		return true, ping(what)
	case "spin":
		return true, spin(what)
	case "call":
		return true, call()
	}
	return true, fmt.Errorf("role %q is unknown", role)
}

// echo sends all received bytes back on their connection.
func echo(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println(`"listening"`)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{conn}, make([]byte, pingBytes))
			}()
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// spin keeps threads busy without useful work.
func spin(threads string) error {
	n, err := strconv.Atoi(threads)
	if err != nil {
		return err
	}
	for range n {
		go func() {
			for x := uint64(1); x != 0; x = x*2 + 1 {
				x &= 1 << 32
			}
		}()
	}
	fmt.Println(`"spinning"`)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// call calls getppid(2) without end. It answers each line with the longest time for which one call had the
// processor, measured as kmap measures its calls.
func call() error {
	var longest atomic.Int64
	go func() {
		runtime.LockOSThread()
		for before := threadTime(); ; {
			unix.Getppid()
			after := threadTime()
			longest.Store(max(longest.Load(), int64(after-before)))
			before = after
		}
	}()
	fmt.Println(`"calling"`)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		fmt.Println(longest.Load())
	}
	return in.Err()
}

// threadTime returns the time for which this thread has had a processor.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// pings counts round trips while on is set. mu protects all fields.
type pings struct {
	mu         sync.Mutex
	on         bool
	times      *hdrhistogram.Histogram
	roundTrips uint64 // times also counts the pings that did not start
}

// takenPings is the answer to "take".
type takenPings struct {
	Latency
	RoundTrips uint64 `json:"round_trips"`
}

// ping sends pings on several connections. It answers the questions "on" and "off" with true, "count"
// with the number of round trips since the last "take", and "take" with the pings since then.
func ping(address string) error {
	p := &pings{times: newHistogram()}
	var flows errgroup.Group
	stop := make(chan struct{})
	for i := range pingFlows {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		flows.Go(func() error { return p.flow(conn, time.Duration(i)*pingEvery/pingFlows, stop) })
	}
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	if err := out.Encode("pinging"); err != nil {
		return err
	}
	for in.Scan() {
		if err := out.Encode(p.answer(in.Text())); err != nil {
			return err
		}
	}
	close(stop)
	return errors.Join(in.Err(), flows.Wait())
}

func (p *pings) answer(line string) any {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch line {
	case "count":
		return p.roundTrips
	case "take":
		taken := takenPings{latencyOf("", p.times), p.roundTrips}
		p.times.Reset()
		p.roundTrips = 0
		return taken
	}
	p.on = line == "on"
	return true
}

// flow sends pings on one connection, with its own time offset.
func (p *pings) flow(conn net.Conn, offset time.Duration, stop <-chan struct{}) error {
	time.Sleep(offset)
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	message := make([]byte, pingBytes)
	for {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		began := time.Now()
		if _, err := conn.Write(message); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, message); err != nil {
			return err
		}
		if err := p.count(time.Since(began)); err != nil {
			return err
		}
	}
}

// count records a round trip. It also records the pings that would have started during a long round
// trip.
func (p *pings) count(took time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.on {
		return nil
	}
	p.roundTrips++
	return p.times.RecordCorrectedValue(int64(took), int64(pingEvery))
}

// realtime starts a command in a namespace, on the first processor. If permitted, the command runs
// with a priority above all ordinary processes. The ends of a connection represent other machines,
// which other work on the load balancer's machine does not delay.
func realtime(ns *netns.NS, allowed *bool) func(*exec.Cmd) error {
	return func(cmd *exec.Cmd) error {
		return ns.Do(func() error { // on a separate thread
			fifo := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 10}
			*allowed = unix.SchedSetAttr(0, &fifo, 0) == nil
			err := startOn(func(cpu int) bool { return cpu == 0 })(cmd)
			if *allowed {
				other := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}
				err = errors.Join(err, unix.SchedSetAttr(0, &other, 0))
			}
			return err
		})
	}
}

// starter starts a command on the processors of its choice.
type starter = func(*exec.Cmd) error

var (
	pingCPU   starter = startOn(func(cpu int) bool { return cpu == 0 }) // the processor that serves the pings
	otherCPUs starter = startOn(func(cpu int) bool { return cpu != 0 }) // all but that one
	anyCPU    starter = (*exec.Cmd).Start
)

// startOn starts a command that may run only on some processors. On a machine with one processor it
// may run there.
func startOn(some func(cpu int) bool) func(*exec.Cmd) error {
	return func(cmd *exec.Cmd) (err error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var all, chosen unix.CPUSet
		if err := unix.SchedGetaffinity(0, &all); err != nil {
			return fmt.Errorf("get CPU affinity: %w", err)
		}
		for cpu := range 64 * len(all) {
			if all.IsSet(cpu) && some(cpu) {
				chosen.Set(cpu)
			}
		}
		if all.Count() > 1 && chosen.Count() > 0 {
			if err := unix.SchedSetaffinity(0, &chosen); err != nil {
				return fmt.Errorf("choose processors: %w", err)
			}
			defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &all)) }()
		}
		return cmd.Start()
	}
}

// pinger sends pings through the load balancer of a network.
type pinger struct {
	echo, ping *process.Child
	realtime   bool
	roundTrips uint64 // of the pings that were taken
}

func startPinger(w *network) (_ *pinger, err error) {
	p := &pinger{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	var up string
	if p.echo, err = process.StartChild("the backend", pingVariable, "echo "+addrPort(backendAddr, backendPort).String(), realtime(w.backend, &p.realtime)); err != nil {
		return nil, err
	}
	if err := p.echo.Receive(&up); err != nil {
		return nil, err
	}
	if p.ping, err = process.StartChild("the client", pingVariable, "ping "+addrPort(serviceAddr, servicePort).String(), realtime(w.client, &p.realtime)); err != nil {
		return nil, err
	}
	return p, p.ping.Receive(&up)
}

// during counts the pings while fn runs, and until at least one round trip since the last take is counted.
func (p *pinger) during(fn func() error) error {
	var ok bool
	if err := p.ping.Ask("on", &ok); err != nil {
		return err
	}
	err := fn()
	if err == nil {
		err = p.awaitRoundTrip()
	}
	return errors.Join(err, p.ping.Ask("off", &ok))
}

// awaitRoundTrip waits until a round trip since the last take is counted.
func (p *pinger) awaitRoundTrip() error {
	for began := time.Now(); ; sleep(pingEvery) {
		waited := time.Since(began)
		var counted uint64
		if err := p.ping.Ask("count", &counted); err != nil || counted > 0 {
			return err
		}
		if waited >= roundTripLimit {
			return fmt.Errorf("wait for a ping: no round trip within %s", roundTripLimit)
		}
	}
}

// take returns the pings that were counted since the last call.
func (p *pinger) take(name string) (Latency, error) {
	var taken takenPings
	err := p.ping.Ask("take", &taken)
	p.roundTrips += taken.RoundTrips
	taken.Name = name
	return taken.Latency, err
}

func (p *pinger) close() error { return errors.Join(p.ping.Close(), p.echo.Close()) }

// spinning runs fn while another process keeps the given number of threads busy. start chooses their
// processors.
func spinning(threads int, start starter, fn func() error) error {
	c, err := startPingChild("a spinning process", fmt.Sprint("spin ", threads), start)
	if err == nil {
		err = fn()
	}
	return errors.Join(err, c.Close())
}

// startPingChild starts a process in a role, and waits until it says that it works. The caller closes it, also after an
// error.
func startPingChild(name, role string, start starter) (*process.Child, error) {
	c, err := process.StartChild(name, pingVariable, role, start)
	if err != nil {
		return c, err
	}
	var up string
	return c, c.Receive(&up)
}
