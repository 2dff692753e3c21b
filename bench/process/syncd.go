package process

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

	"github.com/cilium/ebpf"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
)

// syncdVariable is the environment variable with the settings of a daemon process.
const syncdVariable = "MAPSYNC_BENCH_SYNCD"

// RunSyncd runs the daemon if Syncd.Start started this process. It prints the ids
// of its capture's maps and waits for a line on its standard input. Then it answers each line, and
// exits at the end of its input.
func RunSyncd(answer func(question string) any) (asked bool, err error) {
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
			opened, err := capture.Open(o)
			if err != nil {
				return nil, err
			}
			if err = announce(out, opened); err == nil {
				_, err = in.ReadString('\n')
			}
			if err != nil {
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

func announce(out *json.Encoder, c *capture.Capture) error {
	ids := make(map[string]uint32)
	for name, m := range c.Maps() {
		id, err := MapID(m)
		if err != nil {
			return err
		}
		ids[name] = id
	}
	return out.Encode(ids)
}

// MapID returns the kernel's id of a map.
func MapID(m *ebpf.Map) (uint32, error) {
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

// Address returns a loopback address that no other process of this program uses.
func Address(number int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+pid/250%250, pid%250, number)
}

// Syncd is a daemon in a separate process, without hooks, with mutual TLS and encrypted gossip, and with default settings except
// for its addresses and files.
type Syncd struct {
	*Child
	Config config.Config
	Client *daemon.Client
	// Shared are the maps of the daemon's capture, for an injector.
	Shared map[string]*ebpf.Map

	dir     string
	program program
}

// NewSyncd returns the settings of daemon number n (1, 2, ...) with a map of that name. The caller
// may change them before Start, and closes the Syncd.
func NewSyncd(number int, name string, m *ebpf.Map) (*Syncd, error) {
	id, err := MapID(m)
	if err != nil {
		return nil, err
	}
	s := &Syncd{Config: config.Default(), Shared: make(map[string]*ebpf.Map)}
	if s.dir, err = os.MkdirTemp("", "syncd"); err != nil {
		return nil, fmt.Errorf("create directory: %w", err)
	}
	c, here := &s.Config, Address(number)
	c.Attach, c.BufferSize = string(capture.AttachNone), capture.DefaultRingBytes // an injector fills it
	c.NodeName = fmt.Sprintf("n%d", number)
	c.Maps = []string{fmt.Sprintf("%s=id:%d", name, id)}
	c.GossipListen, c.GRPCListen, c.MetricsListen = here+":7946", here+":7947", here+":9746"
	if number > 1 {
		c.Join = []string{Address(1) + ":7946"}
	}
	c.StateDir, c.ControlSocket = s.dir, filepath.Join(s.dir, "syncd.sock")
	s.Client = daemon.NewClient(c.ControlSocket)
	return s, nil
}

// Start starts the process with start. Without certificates of the caller, all daemons that this process starts share an authority
// and a gossip key. It returns after the daemon has begun to receive the changes
// that an injector reports.
func (s *Syncd) Start(start func(*exec.Cmd) error) error {
	if err := s.secure(); err != nil {
		return err
	}
	settings, err := json.Marshal(s.Config)
	if err != nil {
		return err
	}
	if s.Child, err = StartChild("syncd "+s.Config.NodeName, syncdVariable, string(settings), start); err != nil {
		return err
	}
	var ids map[string]uint32
	if err := s.Receive(&ids); err != nil {
		return err
	}
	for name, id := range ids {
		if s.Shared[name], err = ebpf.NewMapFromID(ebpf.MapID(id)); err != nil {
			return fmt.Errorf("open map %s of its capture: %w", name, err)
		}
	}
	return s.Send("continue")
}

// Close ends the daemon and waits for its exit. The receiver may be nil.
func (s *Syncd) Close() error {
	if s == nil {
		return nil
	}
	errs := []error{s.Child.Close(), s.StopProgram()}
	for _, m := range s.Shared {
		errs = append(errs, m.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}
