// Package cluster tests whole nodes against each other: real daemons with real
// maps, each beside a data plane, killed, stopped and restarted under load. The
// nodes are containers with an address each, or processes of one virtual machine.
//
// A node is this test binary again, in another role: a balancer that lives on
// while the syncd below it is killed.
package cluster

import (
	"bufio"
	"cmp"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// roleVariable is the environment variable that makes this binary a node or its
// syncd; settingsVariable holds what it needs to know.
const (
	roleVariable     = "CLUSTER_ROLE"
	settingsVariable = "CLUSTER_SETTINGS"
	roleNode         = "node"
	roleSyncd        = "syncd"
)

// Names of the files that secure a node.
const (
	certFile   = "node.crt"
	keyFile    = "node.key"
	caFile     = "ca.crt"
	gossipFile = "gossip.key"
)

// settings is what a node is told at its start, and its syncd at each of its own.
type settings struct {
	Number  uint32
	Map     mapSettings
	Hooks   bool   // real hooks; otherwise the data plane reports by itself
	Control string // host:port of the node's control, or the path of its socket
	Dir     string // for its files
	Config  config.Config
	// ClockAhead is how far the wall clock of syncd is ahead of the machine's.
	ClockAhead time.Duration
}

// startRequest has a node start its syncd. Files are by their names in Dir.
type startRequest struct {
	Config     config.Config
	Files      map[string][]byte
	ClockAhead time.Duration
}

// Main runs the role that the environment asks for and never returns, or returns
// at once when it asks for none.
func Main() {
	role := os.Getenv(roleVariable)
	if role == "" {
		return
	}
	var s settings
	var err error
	if role != roleGuest {
		err = json.Unmarshal([]byte(os.Getenv(settingsVariable)), &s)
	}
	if err == nil {
		err = rlimit.RemoveMemlock()
	}
	if err == nil {
		switch role {
		case roleNode:
			err = runNode(s)
		case roleSyncd:
			err = runSyncd(s)
		case roleGuest:
			err = runGuest()
		default:
			err = fmt.Errorf("role %q is unknown", role)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// node is a balancer with a syncd that can be killed.
type node struct {
	settings settings
	balancer *balancer

	mu    sync.Mutex
	syncd *exec.Cmd
	stdin io.Closer
	ended chan struct{}
}

func runNode(s settings) error {
	b, err := newBalancer(s.Number, fmt.Sprintf("ct_%d", s.Number), s.Map)
	if err != nil {
		return err
	}
	n := &node{settings: s, balancer: b}
	l, err := net.Listen(controlNetwork(s.Control), s.Control)
	if err != nil {
		return fmt.Errorf("listen for control: %w", err)
	}
	fmt.Println("node is up")
	return http.Serve(l, n.handler())
}

// controlNetwork says what kind of address a node's control has.
func controlNetwork(address string) string {
	if filepath.IsAbs(address) {
		return "unix"
	}
	return "tcp"
}

// configure takes the settings of syncd, with files and map of this node.
func (n *node) configure(r startRequest) error {
	dir := n.settings.Dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write node files: %w", err)
	}
	for name, data := range r.Files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return fmt.Errorf("write node files: %w", err)
		}
	}
	info, err := n.balancer.m.Info()
	if err != nil {
		return fmt.Errorf("ask for the map's id: %w", err)
	}
	id, _ := info.ID()
	c := &r.Config
	c.Maps = []string{fmt.Sprintf("%s=id:%d", cmp.Or(n.settings.Map.Name, "ct"), id)}
	c.StateDir, c.ControlSocket = dir, filepath.Join(dir, "syncd.sock")
	if r.Files != nil {
		c.TLSCert, c.TLSKey, c.TLSCA = filepath.Join(dir, certFile), filepath.Join(dir, keyFile), filepath.Join(dir, caFile)
		c.GossipKeyFile = filepath.Join(dir, gossipFile)
	}
	n.settings.Config, n.settings.ClockAhead = *c, r.ClockAhead
	return nil
}

// startSyncd starts the daemon and returns once it sees every change.
func (n *node) startSyncd(r startRequest) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.configure(r); err != nil {
		return err
	}
	settings, err := json.Marshal(n.settings)
	if err != nil {
		return fmt.Errorf("encode settings: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this binary: %w", err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleSyncd, settingsVariable+"="+string(settings))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // all its threads are made nice at once
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start syncd: %w", err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start syncd: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start syncd: %w", err)
	}
	ended := make(chan struct{})
	n.syncd, n.ended = cmd, ended
	announced, readErr := bufio.NewReader(out).ReadBytes('\n')
	go func() {
		_ = cmd.Wait() // its end is what the test wants, or what its log tells
		close(ended)
	}()
	if readErr != nil {
		return fmt.Errorf("syncd did not start: %w", readErr)
	}
	if err := n.follow(announced); err != nil {
		return err
	}
	if _, err = in.Write([]byte("seen\n")); err != nil {
		return fmt.Errorf("answer syncd: %w", err)
	}
	n.stdin = in // open for as long as this process lives
	return nil
}

// follow has the data plane report to the capture that syncd announced.
func (n *node) follow(announced []byte) error {
	var ids map[string]uint32
	if err := json.Unmarshal(announced, &ids); err != nil {
		return fmt.Errorf("read what syncd announced: %w", err)
	}
	if n.settings.Hooks {
		return nil
	}
	shared := make(map[string]*ebpf.Map)
	for name, id := range ids {
		m, err := ebpf.NewMapFromID(ebpf.MapID(id))
		if err != nil {
			return fmt.Errorf("open map %s of the capture: %w", name, err)
		}
		defer m.Close()
		shared[name] = m
	}
	return n.balancer.report(shared)
}

// signal sends syncd a signal; after SIGKILL it waits for the end.
func (n *node) signal(s syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.syncd == nil {
		return errors.New("syncd has not been started")
	}
	if err := n.syncd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal syncd: %w", err)
	}
	if s == syscall.SIGKILL {
		<-n.ended
	}
	return nil
}

// nice has syncd run only when nobody else wants to, or as before.
func (n *node) nice(priority int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := unix.Setpriority(unix.PRIO_PGRP, n.syncd.Process.Pid, priority); err != nil {
		return fmt.Errorf("change the priority of syncd: %w", err)
	}
	return nil
}

// handler is how the test drives the node.
func (n *node) handler() http.Handler {
	mux := http.NewServeMux()
	do := func(pattern string, fn func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			result, err := fn(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			if result != nil {
				_ = gob.NewEncoder(w).Encode(result)
			}
		})
	}
	do("POST /load", func(r *http.Request) (any, error) {
		return nil, withLoad(r, func(l load) error { n.balancer.start(l); return nil })
	})
	do("POST /unload", func(*http.Request) (any, error) { return nil, n.balancer.wait(false) })
	do("POST /finish", func(*http.Request) (any, error) { return nil, n.balancer.wait(true) })
	do("POST /start", func(r *http.Request) (any, error) {
		var start startRequest
		if err := json.NewDecoder(r.Body).Decode(&start); err != nil {
			return nil, err
		}
		return nil, n.startSyncd(start)
	})
	do("POST /kill", func(*http.Request) (any, error) { return nil, n.signal(syscall.SIGKILL) })
	do("POST /starve", func(*http.Request) (any, error) { return nil, n.nice(19) })
	do("POST /feed", func(*http.Request) (any, error) { return nil, n.nice(0) })
	do("POST /clear", func(r *http.Request) (any, error) { return nil, withLoad(r, n.balancer.clear) })
	do("POST /rewrite", func(r *http.Request) (any, error) { return nil, withLoad(r, n.balancer.rewrite) })
	do("POST /stop", func(*http.Request) (any, error) { return nil, n.signal(syscall.SIGSTOP) })
	do("POST /continue", func(*http.Request) (any, error) { return nil, n.signal(syscall.SIGCONT) })
	do("GET /expected", func(*http.Request) (any, error) { return n.balancer.expected(), nil })
	do("GET /kernel", func(r *http.Request) (any, error) { return n.balancer.kernel(r.Context()) })
	do("GET /dump", func(*http.Request) (any, error) { return n.balancer.dump() })
	do("GET /table", func(r *http.Request) (any, error) { return n.table(r.Context()) })
	do("GET /records", func(r *http.Request) (any, error) { return n.records(r.Context()) })
	do("GET /expired", func(r *http.Request) (any, error) { return n.expired(r.Context()) })
	do("GET /kernel/digest", func(r *http.Request) (any, error) { return n.digests(r.Context(), n.balancer.kernel) })
	do("GET /table/digest", func(r *http.Request) (any, error) { return n.digests(r.Context(), n.table) })
	do("GET /status", func(r *http.Request) (any, error) {
		s, err := n.client().Status(r.Context())
		if err != nil {
			return nil, err
		}
		data, err := json.Marshal(s)
		return data, err
	})
	return mux
}

func withLoad(r *http.Request, fn func(load) error) error {
	var l load
	if err := json.NewDecoder(r.Body).Decode(&l); err != nil {
		return fmt.Errorf("read the load: %w", err)
	}
	return fn(l)
}

func (n *node) digests(ctx context.Context, held func(context.Context) (content, error)) (digests, error) {
	c, err := held(ctx)
	if err != nil {
		return digests{}, err
	}
	return digests{Expected: n.balancer.expected().digest(), Held: c.digest()}, nil
}

func (n *node) client() *daemon.Client { return daemon.NewClient(n.settings.Config.ControlSocket) }

// table is what syncd says that the map holds. What is deleted while it is told may
// be in it: then it changes yet, and is asked for again.
func (n *node) table(ctx context.Context) (content, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := make(content)
	err := n.client().Entries(ctx, "ct", daemon.EntryQuery{Form: daemon.FormRaw}, func(e *daemon.Entry) error {
		key, value, err := e.Bytes()
		c[string(key)] = string(value)
		return err
	})
	return c, err
}

// expired returns the keys whose records have expired. The kernel map may still hold an entry.
func (n *node) expired(ctx context.Context) (content, error) {
	c := make(content)
	err := n.client().Entries(ctx, "ct", daemon.EntryQuery{Form: daemon.FormRaw, Tombstones: true}, func(e *daemon.Entry) error {
		key, _, err := e.Bytes()
		if delete(c, string(key)); e.Expired { // an entry that changes meanwhile comes again
			c[string(key)] = ""
		}
		return err
	})
	return c, err
}

// records says whose each entry is, by its key, and since when; deleted ones, too.
func (n *node) records(ctx context.Context) (content, error) {
	c := make(content)
	err := n.client().Entries(ctx, "ct", daemon.EntryQuery{Form: daemon.FormRaw, Tombstones: true}, func(e *daemon.Entry) error {
		key, value, err := e.Bytes()
		c[string(key)] = fmt.Sprintf("%x of %s, incarnation %d, version %d", head(string(value)), e.Owner, e.Incarnation, e.Version)
		return err
	})
	return c, err
}
