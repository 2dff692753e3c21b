package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
)

// syncdVariable holds the settings of the daemon that this process is to be. What is
// measured of whole daemons is measured of processes of their own: their processor time
// and memory are nobody else's.
const syncdVariable = "MAPSYNC_THROUGHPUT_SYNCD"

// The questions that a daemon's process answers on its standard input, one a line.
const (
	askCPU  = "cpu"  // processor time, ns
	askHeap = "heap" // live Go memory, bytes; it collects garbage
)

// runSyncd is the daemon, but for its source of events: it says which maps its capture
// has, waits until the feed reports there, and ends with its standard input. It
// reports whether it was asked for.
func runSyncd() (asked bool, err error) {
	text := os.Getenv(syncdVariable)
	if text == "" {
		return false, nil
	}
	var c config.Config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return true, fmt.Errorf("read settings: %w", err)
	}
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	d, err := daemon.New(daemon.Options{
		Config: c, Version: "bench", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		OpenCapture: func(o capture.Options) (*capture.Capture, error) {
			o.Attach = capture.AttachNone
			opened, err := capture.Open(o)
			if err != nil {
				return nil, err
			}
			if err := errors.Join(announce(out, opened), awaitLine(in)); err != nil {
				return nil, errors.Join(err, opened.Close())
			}
			return opened, nil
		},
	})
	if err != nil {
		return true, err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		defer stop()
		for line, err := in.ReadString('\n'); err == nil; line, err = in.ReadString('\n') {
			if out.Encode(answer(line[:len(line)-1])) != nil {
				return
			}
		}
	}()
	return true, d.Run(ctx)
}

func answer(question string) uint64 {
	if question == askHeap {
		return heap()
	}
	return uint64(cpuTime(unix.RUSAGE_SELF))
}

func announce(out *json.Encoder, c *capture.Capture) error {
	ids := make(map[string]uint32)
	for name, m := range c.Maps() {
		if name == "perf" {
			continue // no program of type syscall may use it
		}
		id, err := mapID(m)
		if err != nil {
			return err
		}
		ids[name] = id
	}
	return out.Encode(ids)
}

func awaitLine(in *bufio.Reader) error {
	_, err := in.ReadString('\n')
	return err
}

// syncd is a daemon in a process of its own, with default settings but for its
// addresses and files.
type syncd struct {
	config config.Config
	client *daemon.Client
	shared map[string]*ebpf.Map // of its capture, for a feed
	began  time.Time            // when it was started

	dir string
	*child
}

// address returns one of loopback that no other process of this bench has.
func address(number int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+pid/250%250, pid%250, number)
}

// startSyncd starts the daemon number n (1, 2, ...) with a map; change may change its settings.
// It returns once the daemon sees what a feed reports.
func startSyncd(number int, m *ebpf.Map, change func(*config.Config)) (*syncd, error) {
	return startSyncdOn((*exec.Cmd).Start, number, m, change)
}

// startSyncdOn is startSyncd with another way to start the process.
func startSyncdOn(start func(*exec.Cmd) error, number int, m *ebpf.Map, change func(*config.Config)) (_ *syncd, err error) {
	id, err := mapID(m)
	if err != nil {
		return nil, err
	}
	s := &syncd{config: config.Default(), shared: make(map[string]*ebpf.Map)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start syncd: %w", err), s.close())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "throughput"); err != nil {
		return nil, err
	}
	c, here := &s.config, address(number)
	c.NodeName = fmt.Sprintf("n%d", number)
	c.Maps = []string{fmt.Sprintf("%s=id:%d", mapName, id)}
	c.GossipListen, c.GRPCListen, c.MetricsListen = here+":7946", here+":7947", here+":9746"
	if number > 1 {
		c.Join = []string{address(1) + ":7946"}
	}
	c.StateDir, c.ControlSocket = s.dir, filepath.Join(s.dir, "syncd.sock")
	if change != nil {
		change(c)
	}
	s.client = daemon.NewClient(c.ControlSocket)
	return s, s.start(start)
}

func (s *syncd) start(start func(*exec.Cmd) error) error {
	settings, err := json.Marshal(s.config)
	if err != nil {
		return err
	}
	s.began = time.Now()
	s.child, err = startChild("syncd "+s.config.NodeName, syncdVariable, string(settings), start)
	if err != nil {
		return err
	}
	var ids map[string]uint32
	if err := s.hear(&ids); err != nil {
		return err
	}
	for name, id := range ids {
		if s.shared[name], err = ebpf.NewMapFromID(ebpf.MapID(id)); err != nil {
			return fmt.Errorf("open map %s of its capture: %w", name, err)
		}
	}
	return s.tell("seen")
}

// cpu returns the processor time that the daemon has had.
func (s *syncd) cpu() (time.Duration, error) {
	var n time.Duration
	err := s.ask(askCPU, &n)
	return n, err
}

// heap returns its live Go memory in bytes.
func (s *syncd) heap() (n uint64, err error) {
	err = s.ask(askHeap, &n)
	return n, err
}

// awaitReady returns once the daemon says that it is ready, with so many peers.
func (s *syncd) awaitReady(ctx context.Context, peers int) error {
	const patience = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		r, err := s.client.Ready(ctx)
		if err == nil && r.Ready {
			if peers == 0 {
				return nil
			}
			if status, err := s.client.Status(ctx); err == nil && len(status.Peers) == peers && caughtUp(&status) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for syncd %s: %w, missing: %q\n%s", s.config.NodeName, ctx.Err(), r.Missing, s.log.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// caughtUp reports whether every peer has told all.
func caughtUp(s *daemon.Status) bool {
	for _, p := range s.Peers {
		for _, m := range p.Maps {
			if !m.CaughtUp {
				return false
			}
		}
	}
	return true
}

// flawless fails if events were lost on their way into the daemon.
func (s *syncd) flawless(ctx context.Context) error {
	status, err := s.client.Status(ctx)
	if err != nil {
		return err
	}
	if c := status.Capture; c.Lost > 0 || c.Gaps > 0 || c.Malformed > 0 {
		return fmt.Errorf("check %s for losses: %d events lost, %d gaps, %d malformed", s.config.NodeName, c.Lost, c.Gaps, c.Malformed)
	}
	return nil
}

// close ends the daemon and waits for its end.
func (s *syncd) close() error {
	if s == nil {
		return nil
	}
	errs := []error{s.child.close()}
	for _, m := range s.shared {
		errs = append(errs, m.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}
