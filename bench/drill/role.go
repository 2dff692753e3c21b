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
)

// roleVariable names the environment variable that makes this program play one
// part of the drill in its namespace instead of the whole.
const roleVariable = "MAPSYNC_DRILL_ROLE"

const (
	roleClients  = "clients"
	roleBackends = "backends"
	roleBalancer = "balancer"
)

// order is what the drill tells one of its processes, one JSON value each. The
// first one configures the process.
type order struct {
	Clients  *clientsOrder  `json:"clients,omitempty"`
	Backends *backendsOrder `json:"backends,omitempty"`
	Balancer *balancerOrder `json:"balancer,omitempty"`
	Cut      *cutOrder      `json:"cut,omitempty"`
	Close    *closeOrder    `json:"close,omitempty"`
	Attach   bool           `json:"attach,omitempty"` // a balancer that was held shall begin
	Count    bool           `json:"count,omitempty"`  // a balancer shall tell its counters
}

// clientsOrder says which sessions to open.
type clientsOrder struct {
	Service      netip.AddrPort `json:"service"`
	Sources      []netip.Addr   `json:"sources"`
	Sessions     int            `json:"sessions"`
	Key          uint64         `json:"key"`
	Pause        time.Duration  `json:"pause"` // of a session between two requests; 0: by what the machine can do
	Fresh        int            `json:"fresh"`
	StallTimeout time.Duration  `json:"stall_timeout"`
	Hold         time.Duration  `json:"hold"`
}

// backendsOrder says where to answer. With a Pattern the clients are tcpkali's:
// they repeat it, and the backends echo it and count the survivors.
type backendsOrder struct {
	Listen       []netip.AddrPort `json:"listen"`
	Key          uint64           `json:"key"`
	Pattern      string           `json:"pattern,omitempty"`
	Sessions     int              `json:"sessions"`
	Fresh        int              `json:"fresh"`
	StallTimeout time.Duration    `json:"stall_timeout"`
}

// balancerOrder configures one load balancer.
type balancerOrder struct {
	Interface    string           `json:"interface"`
	Mode         string           `json:"mode"`
	Layout       lb.Layout        `json:"layout"`
	Service      netip.AddrPort   `json:"service"`
	Backends     []netip.AddrPort `json:"backends"`
	Name         string           `json:"name"` // of the map; empty: lb.MapName
	PinDir       string           `json:"pin_dir"`
	NewMap       bool             `json:"new_map"` // replaces a pinned one
	Held         bool             `json:"held"`    // balance only when told to attach
	MaxEntries   uint32           `json:"max_entries"`
	Idle         time.Duration    `json:"idle"` // limit of an open session; 0: the load balancer's own
	CollectEvery time.Duration    `json:"collect_every"`
}

// closeOrder has the clients end their sessions [From, To), those with an even
// number by a FIN, and the others by a reset.
type closeOrder struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// cutOrder tells when the active load balancer went, in ns of CLOCK_MONOTONIC:
// it was killed at Killed, and nothing could pass it any more from Dead on. All
// sessions that are open are judged anew.
type cutOrder struct {
	Killed int64 `json:"killed"`
	Dead   int64 `json:"dead"`
}

// report is what a process tells the drill.
type report struct {
	Ready  bool      `json:"ready,omitempty"`  // the process is configured
	Opened bool      `json:"opened,omitempty"` // every session is open and has exchanged data
	Closed bool      `json:"closed,omitempty"` // every session that was to end has
	Done   bool      `json:"done,omitempty"`   // every session is decided; Counts are those of the cut
	Error  string    `json:"error,omitempty"`
	Counts *counts   `json:"counts,omitempty"`
	MapID  uint32    `json:"map_id,omitempty"` // of a balancer's map
	Stats  *lb.Stats `json:"stats,omitempty"`  // of a balancer
}

// counts is where the sessions stand.
type counts struct {
	Opened    int           `json:"opened"`
	Closed    int           `json:"closed"` // ended by the clients, as they were told
	Exchanges uint64        `json:"exchanges"`
	Survived  int           `json:"survived"`
	Reset     int           `json:"reset"`
	Stalled   int           `json:"stalled"`
	Corrupt   int           `json:"corrupt"`
	MaxStall  time.Duration `json:"max_stall"`
	MaxPause  time.Duration `json:"max_pause"` // longest that a session was without a request
	OpenTime  time.Duration `json:"open_time"`
	Latency   time.Duration `json:"latency"` // mean of an exchange before the cut
	Limit     time.Duration `json:"limit"`   // what counts as stalled
	FirstLoss string        `json:"first_loss,omitempty"`
}

// lost is how many sessions broke.
func (c *counts) lost() int {
	if c == nil {
		return 0
	}
	return c.Reset + c.Stalled + c.Corrupt
}

// RunRole plays the part that the environment asks for and reports whether it
// asked for one. A program that calls [Run] calls RunRole first, and exits when
// it returns true: the drill starts its own executable again for every part.
func RunRole() bool {
	role := os.Getenv(roleVariable)
	if role == "" {
		return false
	}
	r := &rolePipe{out: json.NewEncoder(os.Stdout), orders: make(chan order, 4)}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("role", role)
	if err := r.play(role, logger); err != nil {
		r.send(report{Error: err.Error()})
	}
	return true
}

// rolePipe is a process's end of its pipes to the drill.
type rolePipe struct {
	out    *json.Encoder
	orders chan order // closed when the drill is gone
}

func (r *rolePipe) play(role string, logger *slog.Logger) error {
	in := json.NewDecoder(os.Stdin)
	var first order
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
	}
	return fmt.Errorf("role %q does not fit its first order", role)
}

func (r *rolePipe) read(in *json.Decoder) {
	defer close(r.orders)
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return
		}
		r.orders <- o
	}
}

// send tells the drill something. A drill that does not listen any more is gone,
// and its processes with it.
func (r *rolePipe) send(rep report) {
	if err := r.out.Encode(rep); err != nil {
		os.Exit(1)
	}
}

// monotonic returns CLOCK_MONOTONIC in ns, which all processes share.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // no kernel refuses this clock
	}
	return ts.Nano()
}
