package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
)

// syncdVariable holds the settings of the daemon that this process becomes: its memory,
// goroutines and descriptors are then its own.
const syncdVariable = "MAPSYNC_SOAK_SYNCD"

// usage is what a daemon's process uses.
type usage struct {
	Goroutines  int
	Descriptors int
	RSS         uint64 // bytes of memory
}

// runSyncd is the daemon, without hooks: it prints the ids of its capture's maps, waits for a
// line on its standard input, and then answers each line with its usage. It ends with its
// input. asked reports whether the process was started as a daemon.
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
		Config: c, Version: "soak", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		OpenCapture: func(o capture.Options) (*capture.Capture, error) {
			o.Attach = capture.AttachNone
			opened, err := capture.Open(o)
			if err != nil {
				return nil, err
			}
			_, readErr := "", announce(out, opened)
			if readErr == nil {
				_, readErr = in.ReadString('\n')
			}
			if readErr != nil {
				return nil, errors.Join(readErr, opened.Close())
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
		for _, err := in.ReadString('\n'); err == nil; _, err = in.ReadString('\n') {
			if out.Encode(ownUsage()) != nil {
				return
			}
		}
	}()
	return true, d.Run(ctx)
}

func ownUsage() usage {
	u := usage{Goroutines: runtime.NumGoroutine()}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		u.Descriptors = len(files)
	}
	u.RSS, _ = residentMemory(os.Getpid()) // 0 where it cannot be read: the check fails on it
	return u
}

// residentMemory returns the bytes of memory that a process has.
func residentMemory(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, fmt.Errorf("read memory of process: %w", err)
	}
	var size, resident uint64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0, fmt.Errorf("parse memory of process: %w", err)
	}
	return resident * uint64(os.Getpagesize()), nil
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

func mapID(m *ebpf.Map) (uint32, error) {
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("read map id: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("read map id: the kernel does not return it")
	}
	return uint32(id), nil
}

// syncd is a daemon in a process of its own.
type syncd struct {
	config config.Config
	client *daemon.Client
	shared map[string]*ebpf.Map // of its capture
	dir    string
	cmd    *exec.Cmd
	in     interface {
		Write([]byte) (int, error)
		Close() error
	}
	out *json.Decoder
	log tail
}

// address returns an address of loopback that no other process of this program uses.
func address(number int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+pid/250%250, pid%250, number)
}

// startSyncd starts daemon number 1 or 2 for a map. The caller closes it, also after an error.
func startSyncd(number int, m *ebpf.Map) (*syncd, error) {
	s := &syncd{config: config.Default(), shared: make(map[string]*ebpf.Map)}
	id, err := mapID(m)
	if err != nil {
		return s, err
	}
	if s.dir, err = os.MkdirTemp("", "soak"); err != nil {
		return s, fmt.Errorf("create directory: %w", err)
	}
	c, here := &s.config, address(number)
	c.NodeName = fmt.Sprintf("n%d", number)
	c.Maps = []string{fmt.Sprintf("ct=id:%d", id)}
	c.GossipListen, c.GRPCListen, c.MetricsListen = here+":7946", here+":7947", here+":9746"
	c.Join = []string{address(1) + ":7946", address(2) + ":7946"}
	c.StateDir, c.ControlSocket = s.dir, filepath.Join(s.dir, "syncd.sock")
	s.client = daemon.NewClient(c.ControlSocket)
	if err := s.start(); err != nil {
		return s, fmt.Errorf("start syncd %s: %w\n%s", c.NodeName, err, s.log.String())
	}
	return s, nil
}

func (s *syncd) start() error {
	settings, err := json.Marshal(s.config)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s.cmd = exec.Command(self)
	s.cmd.Env = append(os.Environ(), syncdVariable+"="+string(settings))
	s.cmd.Stderr = &s.log
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return err
	}
	s.in, s.out = in, json.NewDecoder(out)
	var ids map[string]uint32
	if err := s.out.Decode(&ids); err != nil {
		return err
	}
	for name, id := range ids {
		if s.shared[name], err = ebpf.NewMapFromID(ebpf.MapID(id)); err != nil {
			return fmt.Errorf("open map %s of its capture: %w", name, err)
		}
	}
	_, err = fmt.Fprintln(s.in, "go on")
	return err
}

// usage asks the daemon's process what it uses.
func (s *syncd) usage() (u usage, err error) {
	if _, err = fmt.Fprintln(s.in, "usage"); err == nil {
		err = s.out.Decode(&u)
	}
	if err != nil {
		return u, fmt.Errorf("ask %s for its usage: %w\n%s", s.config.NodeName, err, s.log.String())
	}
	return u, nil
}

// awaitReady returns once the daemon is ready and has a peer.
func (s *syncd) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		status, err := s.client.Status(ctx)
		if err == nil && status.Ready && len(status.Peers) == 1 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for syncd %s: %w, not ready: %q\n%s", s.config.NodeName, ctx.Err(), status.NotReady, s.log.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// close ends the daemon and waits for its end.
func (s *syncd) close() error {
	var errs []error
	if s.cmd != nil {
		errs = append(errs, s.in.Close())
		if err := s.cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("end syncd %s: %w\n%s", s.config.NodeName, err, s.log.String()))
		}
	}
	for _, m := range s.shared {
		errs = append(errs, m.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// tail keeps the end of a log.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 8 << 10

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// String returns what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}
