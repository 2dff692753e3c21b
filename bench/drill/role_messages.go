package drill

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/bench/lb"
	benchprocess "mapsync/bench/process"
)

// roleVariable is the environment variable that selects a role of the drill. A process with this
// variable runs one role in its namespace instead of the whole drill.
const roleVariable = "MAPSYNC_DRILL_ROLE"

const (
	roleClients  = "clients"
	roleBackends = "backends"
	roleBalancer = "balancer"
	roleNetperf  = "netperf"
)

// command is a message from the drill to one of its processes, one JSON value each. The first
// command configures the process.
type command struct {
	Clients  *clientsConfig  `json:"clients,omitempty"`
	Backends *backendsConfig `json:"backends,omitempty"`
	Balancer *balancerConfig `json:"balancer,omitempty"`
	Netperf  *netperfConfig  `json:"netperf,omitempty"`
	Cut      *cutCommand     `json:"cut,omitempty"`
	Close    *closeCommand   `json:"close,omitempty"`
	Attach   bool            `json:"attach,omitempty"` // a balancer with AttachLater attaches its program
	Count    bool            `json:"count,omitempty"`  // a balancer reports its counters
}

// clientsConfig configures the sessions of the clients.
type clientsConfig struct {
	Service      netip.AddrPort `json:"service"`
	Sources      []netip.Addr   `json:"sources"`
	Sessions     int            `json:"sessions"`
	Key          uint64         `json:"key"`
	Pause        time.Duration  `json:"pause"` // between two requests of a session; 0: by the machine's speed
	Fresh        int            `json:"fresh"`
	StallTimeout time.Duration  `json:"stall_timeout"`
	Hold         time.Duration  `json:"hold"`
}

// backendsConfig configures the backends. With a Pattern the clients are tcpkali's. They repeat the
// pattern; the backends echo it and count the surviving sessions.
type backendsConfig struct {
	Listen       []netip.AddrPort `json:"listen"`
	Key          uint64           `json:"key"`
	Pattern      string           `json:"pattern,omitempty"`
	Sessions     int              `json:"sessions"`
	Fresh        int              `json:"fresh"`
	StallTimeout time.Duration    `json:"stall_timeout"`
}

// balancerConfig configures one load balancer.
type balancerConfig struct {
	Interface    string           `json:"interface"`
	Mode         string           `json:"mode"`
	Layout       lb.Layout        `json:"layout"`
	Service      netip.AddrPort   `json:"service"`
	Backends     []netip.AddrPort `json:"backends"`
	More         []lb.Service     `json:"more,omitempty"` // further services
	Name         string           `json:"name"`           // kernel name of the map; empty: lb.MapName
	PinDir       string           `json:"pin_dir"`
	NewMap       bool             `json:"new_map"`      // replaces a pinned map
	AttachLater  bool             `json:"attach_later"` // attaches only at an attach command
	MaxEntries   uint32           `json:"max_entries"`
	Idle         time.Duration    `json:"idle"` // idle limit of an open session; 0: the load balancer's default
	CollectEvery time.Duration    `json:"collect_every"`

	// Reports are the ids of the maps of a capture, to which the program reports its writes.
	Reports map[string]uint32 `json:"reports,omitempty"`
}

// closeCommand makes the clients close the sessions [From, To): sessions with an even number by a
// FIN, the others by a reset.
type closeCommand struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// cutCommand reports when the active load balancer failed, in ns of CLOCK_MONOTONIC. The drill
// killed it at Killed. From Dead on it forwarded no packet. All open sessions are decided anew.
type cutCommand struct {
	Killed int64 `json:"killed"`
	Dead   int64 `json:"dead"`
}

// report is a message from a process to the drill.
type report struct {
	Ready  bool      `json:"ready,omitempty"`  // the process is configured
	Opened bool      `json:"opened,omitempty"` // every session is open and has exchanged data
	Closed bool      `json:"closed,omitempty"` // every session that was to be closed is closed
	Done   bool      `json:"done,omitempty"`   // every session is decided; Counts has the result of the cut
	Error  string    `json:"error,omitempty"`
	Counts *counts   `json:"counts,omitempty"`
	MapID  uint32    `json:"map_id,omitempty"` // of a balancer's map
	Stats  *lb.Stats `json:"stats,omitempty"`  // of a balancer
}

// counts is the state of the sessions.
type counts struct {
	Opened    int           `json:"opened"`
	Closed    int           `json:"closed"` // closed by the clients on a close command
	Exchanges uint64        `json:"exchanges"`
	Survived  int           `json:"survived"`
	Reset     int           `json:"reset"`
	Stalled   int           `json:"stalled"`
	Corrupt   int           `json:"corrupt"`
	MaxStall  time.Duration `json:"max_stall"`
	MaxPause  time.Duration `json:"max_pause"` // longest time of a session without a request
	OpenTime  time.Duration `json:"open_time"`
	Latency   time.Duration `json:"latency"` // mean of an exchange before the cut
	Limit     time.Duration `json:"limit"`   // an exchange that takes longer is stalled
	FirstLoss string        `json:"first_loss,omitempty"`
}

// lost returns the number of lost sessions.
func (c *counts) lost() int {
	if c == nil {
		return 0
	}
	return c.Reset + c.Stalled + c.Corrupt
}

// RunRole runs the role that the environment selects, which may be syncd without hooks, and reports whether the
// environment selects one. A program that calls [Run] calls RunRole first, and exits when it returns true: the drill
// starts its own executable again for every role.
func RunRole() bool {
	role := os.Getenv(roleVariable)
	if role == "" {
		asked, err := benchprocess.RunSyncd(func(string) any { return nil })
		if err != nil {
			fmt.Fprintln(os.Stderr, "syncd:", err)
			os.Exit(1)
		}
		return asked
	}
	r := &rolePipe{out: json.NewEncoder(os.Stdout), commands: make(chan command, 4)}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("role", role)
	if err := r.play(role, logger); err != nil {
		r.send(report{Error: err.Error()})
	}
	return true
}

// rolePipe is the end of a role's process of its pipes to the drill.
type rolePipe struct {
	out      *json.Encoder
	commands chan command // closed when the drill has ended
}

func (r *rolePipe) play(role string, logger *slog.Logger) error {
	in := json.NewDecoder(os.Stdin)
	var first command
	if err := in.Decode(&first); err != nil {
		return fmt.Errorf("read first order: %w", err)
	}
	go r.read(in)
	switch {
	case role == roleClients && first.Clients != nil:
		return runClients(r, first.Clients)
	case role == roleBackends && first.Backends != nil:
		return runBackends(r, first.Backends)
	case role == roleBalancer && first.Balancer != nil:
		return runBalancer(r, first.Balancer, logger)
	case role == roleNetperf && first.Netperf != nil:
		return runNetperf(r, first.Netperf)
	}
	return fmt.Errorf("role %q does not fit its first order", role)
}

func (r *rolePipe) read(in *json.Decoder) {
	defer close(r.commands)
	for {
		var o command
		if err := in.Decode(&o); err != nil {
			return
		}
		r.commands <- o
	}
}

// send sends a report to the drill. If the drill has closed the pipe, it has ended, and send ends
// this process.
func (r *rolePipe) send(rep report) {
	if err := r.out.Encode(rep); err != nil {
		os.Exit(1)
	}
}

// monotonic returns CLOCK_MONOTONIC in ns, which all processes share.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every kernel supports this clock
	}
	return ts.Nano()
}
