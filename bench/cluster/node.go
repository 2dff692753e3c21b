// Package cluster tests whole nodes against each other. They are real daemons with real maps, each
// beside a data plane, and are killed, stopped and restarted under load. The nodes are containers
// with one address each, or processes of one virtual machine.
//
// A node is this test binary in another role: a balancer that continues to run while the test kills
// its syncd.
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

// roleVariable is the environment variable that selects the role of this binary: node, machine or syncd.
// settingsVariable holds the settings of the role.
const (
	roleVariable     = "CLUSTER_ROLE"
	settingsVariable = "CLUSTER_SETTINGS"
	roleNode         = "node"
	roleSyncd        = "syncd"
	roleMachine      = "machine"
)

// Names of the files that secure a node.
const (
	certFile   = "node.crt"
	keyFile    = "node.key"
	caFile     = "ca.crt"
	gossipFile = "gossip.key"
)

// settings are the settings of a node at its start, and of its syncd at each start of syncd.
type settings struct {
	Number  uint32
	Map     mapSettings
	Hooks   bool   // real hooks attach; otherwise the data plane reports its changes
	Control string // host:port of the node's control server, or the path of its socket
	Dir     string // for its files
	Config  config.Config
	// ClockAhead is the difference of syncd's wall clock to the machine's; positive: ahead.
	ClockAhead time.Duration
}

// startRequest asks a node to start its syncd. Files maps names in Dir to contents.
type startRequest struct {
	Config     config.Config
	Files      map[string][]byte
	ClockAhead time.Duration
}

// Main runs the role that the environment selects and never returns. It returns at once if the
// environment selects no role.
func Main() {
	role := os.Getenv(roleVariable)
	if role == "" {
		return
	}
	var s settings
	var err error
	if role != roleExtraMember {
		err = json.Unmarshal([]byte(os.Getenv(settingsVariable)), &s)
	}
	if err == nil {
		err = rlimit.RemoveMemlock()
	}
	if err == nil {
		switch role {
		case roleNode:
			err = runNode(s)
		case roleMachine:
			err = runMachine(s)
		case roleSyncd:
			err = runSyncd(s)
		case roleExtraMember:
			err = runExtraMember()
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

// node is a balancer with a syncd that the test can kill.
type node struct {
	settings settings
	balancer *balancer

	mu    sync.Mutex
	syncd *exec.Cmd
	stdin io.WriteCloser
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

// controlNetwork returns the network of the address of a node's control server: unix or tcp.
func controlNetwork(address string) string {
	if filepath.IsAbs(address) {
		return "unix"
	}
	return "tcp"
}

// configure stores the settings of syncd, with files and map of this node.
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
		return fmt.Errorf("get the map's id: %w", err)
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

// startSyncd starts the daemon. It returns after syncd has started to capture every change.
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
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // setPriority changes all its threads with one call
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
		_ = cmd.Wait() // the test expects the exit, or the log has its cause
		close(ended)
	}()
	if readErr != nil {
		return fmt.Errorf("syncd did not start: %w", readErr)
	}
	if err := n.reportTo(announced); err != nil {
		return err
	}
	if _, err = in.Write([]byte("seen\n")); err != nil {
		return fmt.Errorf("answer syncd: %w", err)
	}
	n.stdin = in // stays open while this process runs
	return nil
}

// reportTo makes the data plane report to the capture that syncd announced.
func (n *node) reportTo(announced []byte) error {
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

// signal sends syncd a signal. After SIGKILL it waits for the exit.
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

// setPriority sets the nice value of all threads of syncd.
func (n *node) setPriority(priority int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := unix.Setpriority(unix.PRIO_PGRP, n.syncd.Process.Pid, priority); err != nil {
		return fmt.Errorf("change the priority of syncd: %w", err)
	}
	return nil
}

// handler returns the HTTP handler by which the test controls the node.
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
		return nil, withLoad(r, n.balancer.start)
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
	do("POST /starve", func(*http.Request) (any, error) { return nil, n.setPriority(19) })
	do("POST /unstarve", func(*http.Request) (any, error) { return nil, n.setPriority(0) })
	do("POST /clear", func(r *http.Request) (any, error) { return nil, withLoad(r, n.balancer.clear) })
	do("POST /rewrite", func(r *http.Request) (any, error) { return nil, withLoad(r, n.balancer.rewrite) })
	do("POST /stop", func(*http.Request) (any, error) { return nil, n.signal(syscall.SIGSTOP) })
	do("POST /continue", func(*http.Request) (any, error) { return nil, n.signal(syscall.SIGCONT) })
	do("POST /release", func(r *http.Request) (any, error) {
		_, err := n.client().ReleaseClear(r.Context(), "ct")
		return nil, err
	})
	do("POST /clock", func(r *http.Request) (any, error) {
		var now time.Time
		if err := json.NewDecoder(r.Body).Decode(&now); err != nil {
			return nil, err
		}
		ts := unix.NsecToTimespec(now.UnixNano())
		return nil, unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
	})
	do("POST /ahead", func(r *http.Request) (any, error) {
		var ahead time.Duration
		if err := json.NewDecoder(r.Body).Decode(&ahead); err != nil {
			return nil, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		_, err := fmt.Fprintln(n.stdin, int64(ahead))
		return nil, err
	})
	do("GET /missing", func(*http.Request) (any, error) { return n.balancer.missing() })
	do("GET /presence", func(*http.Request) (any, error) { return n.balancer.presence() })
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

// table returns the entries of syncd's table. Entries that are deleted during the request may be
// included. In this case the table is still changing, and the test requests it again.
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
		if delete(c, string(key)); e.Expired { // an entry that changes during the request appears twice
			c[string(key)] = ""
		}
		return err
	})
	return c, err
}

// records returns owner, incarnation and version of each record, by key, deleted records included.
func (n *node) records(ctx context.Context) (content, error) {
	c := make(content)
	err := n.client().Entries(ctx, "ct", daemon.EntryQuery{Form: daemon.FormRaw, Tombstones: true}, func(e *daemon.Entry) error {
		key, value, err := e.Bytes()
		c[string(key)] = fmt.Sprintf("%x of %s, incarnation %d, version %d", head(string(value)), e.Owner, e.Incarnation, e.Version)
		return err
	})
	return c, err
}
