package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/goccy/go-yaml"

	"mapsync/bench/lb"
	"mapsync/internal/testcert"
)

const (
	gossipPort  = "7946"
	grpcPort    = "7947"
	statusEvery = time.Second
)

// daemon is a running syncd.
type daemon struct {
	process *process
	program string // path
	socket  string
}

// settings are the values that the drill writes into a syncd's configuration file. They are the
// ones that an operator would have to set.
type settings struct {
	NodeName      string   `yaml:"node-name"`
	Maps          []string `yaml:"map"`
	Schemas       []string `yaml:"schema,omitempty"`
	Attach        string   `yaml:"attach"`
	Buffer        string   `yaml:"buffer"`
	GossipListen  string   `yaml:"gossip-listen"`
	GossipKeyFile string   `yaml:"gossip-key-file"`
	Join          []string `yaml:"join"`
	GRPCListen    string   `yaml:"grpc-listen"`
	TLSCert       string   `yaml:"tls-cert"`
	TLSKey        string   `yaml:"tls-key"`
	TLSCA         string   `yaml:"tls-ca"`
	ControlSocket string   `yaml:"control-socket"`
	StateDir      string   `yaml:"state-dir"`
	LogLevel      string   `yaml:"log-level"`

	// For empty fields syncd uses its defaults.
	RefreshInterval string `yaml:"refresh-interval,omitempty"`
	ScanInterval    string `yaml:"scan-interval,omitempty"`
	ScanBudget      int    `yaml:"scan-budget,omitempty"`
	DeadTime        string `yaml:"dead-time,omitempty"`
}

// startDaemons starts a syncd beside each load balancer, with TLS and gossip key as in production.
// It waits until both are connected.
func (r *run) startDaemons(ctx context.Context) error {
	if r.opts.Syncd == "" {
		return nil
	}
	ca, gossipKey, err := r.createSecrets()
	if err != nil {
		return err
	}
	for i, node := range r.net.nodes {
		pair, err := ca.Issue(node.name, testcert.Options{})
		if err != nil {
			return err
		}
		c, err := r.settings(i)
		if err != nil {
			return err
		}
		c.GossipKeyFile, c.TLSCert, c.TLSKey, c.TLSCA = gossipKey, pair.CertFile, pair.KeyFile, pair.CAFile
		if r.adjust != nil {
			r.adjust(c)
		}
		if err := r.startDaemon(i, c); err != nil {
			return err
		}
	}
	return r.awaitReady(ctx)
}

// createSecrets creates the CA of the nodes' certificates and the file of their gossip key.
func (r *run) createSecrets() (ca *testcert.CA, gossipKey string, err error) {
	shared, err := r.workDir.files(r.name, "shared")
	if err != nil {
		return nil, "", err
	}
	if ca, err = testcert.NewCA(shared, "ca"); err != nil {
		return nil, "", err
	}
	gossipKey, err = testcert.WriteGossipKey(shared)
	return ca, gossipKey, err
}

// settings returns the settings of one node except its secrets. The two nodes communicate on the
// link between them. Each joins the other, so that the order of their starts does not matter.
func (r *run) settings(i int) (*settings, error) {
	node, peer := r.net.nodes[i], r.net.nodes[1-i]
	dir, err := r.workDir.files(r.name, node.name)
	if err != nil {
		return nil, err
	}
	m, err := r.openMap(i)
	if err != nil {
		return nil, err
	}
	schemas, err := objectSchemas(m, r.opts.Layouts[i], dir)
	if err = errors.Join(err, m.Close()); err != nil {
		return nil, err
	}
	ref := filepath.Join(r.pins[i], lb.MapName)
	if r.byName {
		ref = lb.MapName + "=name:" + mapNameOf(node.name)
	}
	return &settings{
		NodeName: node.name,
		Maps:     []string{ref}, Schemas: schemas,
		Attach: r.opts.Attach, Buffer: r.opts.Buffer,
		GossipListen: node.sync + ":" + gossipPort, GRPCListen: node.sync + ":" + grpcPort,
		Join:          []string{peer.sync + ":" + gossipPort},
		ControlSocket: filepath.Join(dir, "syncd.sock"), StateDir: dir,
		LogLevel: "warn",
	}, nil
}

// objectSchemas writes the load balancer's object file into dir and returns it as a schema source
// for syncd. This applies if the kernel does not keep the field roles of the types. Otherwise
// objectSchemas returns no schemas.
func objectSchemas(m *ebpf.Map, layout lb.Layout, dir string) (schemas []string, err error) {
	known, err := lb.HasFieldRoles(m)
	if err != nil || known {
		return nil, err
	}
	file := filepath.Join(dir, "lb.o")
	if err := os.WriteFile(file, layout.Object(), 0o600); err != nil {
		return nil, fmt.Errorf("write object of load balancer: %w", err)
	}
	return []string{lb.MapName + "=" + file}, nil
}

func (r *run) startDaemon(i int, c *settings) error {
	text, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode settings of %s: %w", c.NodeName, err)
	}
	file := filepath.Join(c.StateDir, "syncd.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write settings of %s: %w", c.NodeName, err)
	}
	program := [2]string{active: r.opts.Syncd, standby: r.opts.StandbySyncd}[i]
	p, err := startProgram(r.net.nodes[i].ns, control, c.NodeName+" syncd", program, "run", "--config", file)
	if err != nil {
		return err
	}
	r.daemons[i] = &daemon{process: p, program: program, socket: c.ControlSocket}
	return nil
}

// status is the part of `syncd status --json` that the drill reads.
type status struct {
	Version  string   `json:"version"`
	Ready    bool     `json:"ready"`
	NotReady []string `json:"not_ready"`
	Capture  struct {
		Events uint64 `json:"events"`
		Lost   uint64 `json:"lost"`
	} `json:"capture"`
	Peers []struct {
		Receiving bool `json:"receiving"`
		Sending   bool `json:"sending"`
		Maps      []struct {
			Lag    uint64 `json:"lag_entries"`
			Agreed bool   `json:"agreed"`
		} `json:"maps"`
	} `json:"peers"`
}

// connected reports whether the daemon is ready and has streams to and from its peer.
func (s *status) connected() bool {
	return s.Ready && len(s.Peers) == 1 && s.Peers[0].Sending && s.Peers[0].Receiving
}

// lag returns the number of entries that the peer's map is behind.
func (s *status) lag() (entries uint64, known bool) {
	if len(s.Peers) != 1 || len(s.Peers[0].Maps) != 1 {
		return 0, false
	}
	return s.Peers[0].Maps[0].Lag, true
}

func (r *run) queryStatus(ctx context.Context, d *daemon) (status, error) {
	var s status
	text, err := r.queryStatusJSON(ctx, d)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("read status of %s: %w", d.process.name, err)
	}
	return s, nil
}

func (r *run) queryStatusJSON(ctx context.Context, d *daemon) ([]byte, error) {
	cmd := exec.CommandContext(ctx, d.program, "status", "--json", "--control-socket", d.socket)
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", d.process.name, err)
	}
	return text, nil
}

// logStandbyStatus logs the status of the surviving syncd, for the analysis of a loss.
func (r *run) logStandbyStatus(ctx context.Context) {
	if r.daemons[standby] == nil {
		return
	}
	text, err := r.queryStatusJSON(ctx, r.daemons[standby])
	if err != nil {
		r.log.Warn("standby's syncd does not answer", "error", err)
		return
	}
	r.log.Warn("sessions were lost", "standby_status", string(text))
}

// awaitReady waits until both daemons are ready and connected to their peer.
func (r *run) awaitReady(ctx context.Context) error {
	for _, d := range r.daemons {
		if s, err := r.awaitStatus(ctx, d, (*status).connected); err != nil {
			return fmt.Errorf("wait for %s to be ready: %w (last status: %+v)", d.process.name, err, s)
		}
	}
	r.log.Info("both syncd are ready and connected", "attach", r.opts.Attach, "buffer", r.opts.Buffer)
	return nil
}

// awaitPeer waits until the active load balancer's syncd reports that its peer has no lag, while
// traffic continues. If the peer is late, the drill still kills the load balancer: the sessions
// show the effect.
func (r *run) awaitPeer(ctx context.Context) error {
	begun := time.Now()
	s, err := r.awaitStatus(ctx, r.daemons[active], func(s *status) bool {
		lag, known := s.lag()
		return known && lag == 0
	})
	lag, _ := s.lag()
	log := r.log.With("took", time.Since(begun).Round(time.Millisecond),
		"events", s.Capture.Events, "lost", s.Capture.Lost, "lag", lag)
	switch {
	case errors.Is(err, errSyncTimeout):
		log.Warn("peer has not caught up in time")
	case err != nil:
		return fmt.Errorf("wait for peer to catch up: %w", err)
	default:
		log.Info("peer has caught up")
	}
	return nil
}

// errSyncTimeout is returned if a daemon did not reach the wanted state within SyncTimeout.
var errSyncTimeout = errors.New("not as wanted within the sync timeout")

// awaitStatus polls a daemon until its status is wanted, and returns the last status.
func (r *run) awaitStatus(ctx context.Context, d *daemon, wanted func(*status) bool) (status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.opts.SyncTimeout, errSyncTimeout)
	defer cancel()
	var last status
	for {
		s, err := r.queryStatus(ctx, d)
		if err == nil {
			if last = s; wanted(&s) {
				return s, nil
			}
		}
		select {
		case <-ctx.Done():
			return last, errors.Join(context.Cause(ctx), err)
		case <-d.process.done:
			return last, fmt.Errorf("it ended: %w", d.process.exitReason())
		case <-time.After(statusEvery):
		}
	}
}
