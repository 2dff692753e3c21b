package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// MaxMaps is how many maps a Replicator carries at once.
const MaxMaps = 64

// DefaultMaxClockAhead is the limit for a record's version ahead of the local
// clock when Options do not say.
const DefaultMaxClockAhead = time.Minute

const (
	protocolVersion = 1
	maxNodeName     = 255
)

var (
	// ErrOptions is wrapped by the errors of New.
	ErrOptions = errors.New("invalid replicator options")
	// ErrMap is wrapped by the errors of AddMap.
	ErrMap = errors.New("map cannot be replicated")
	// ErrRunning is returned by a second call of Run.
	ErrRunning = errors.New("replicator has run already")
)

// Peer is a live member of the cluster other than this node.
type Peer struct {
	// Node is its name.
	Node string
	// Incarnation is the wall clock in nanoseconds at which its process started.
	Incarnation uint64
	// Addr is where its replication service listens, host:port.
	Addr string
}

func (p Peer) owner() table.Owner {
	return table.Owner{Node: p.Node, Incarnation: p.Incarnation}
}

// Layout is what the entries of a map are.
type Layout struct {
	// KeySize is the size of a key in bytes.
	KeySize int
	// ValueSize is the size of a value in bytes.
	ValueSize int
	// LRU says that the map evicts. Nodes may differ in it.
	LRU bool
	// Schema is what the bytes of keys and values mean. Peers whose schema is
	// another are told, and tell, what both know by name. It must not change any
	// more. Nil means bytes, of which peers must have as many.
	Schema *schema.Schema
	// Links translates interface indexes. Nil knows none.
	Links schema.Links
	// Room returns how many entries the kernel map has room for, 0 while there is none. It
	// must not block, and may be called from any goroutine. Nil: not known.
	Room func() int
}

// Options configure a Replicator.
type Options struct {
	// Self is this node and its incarnation.
	Self table.Owner
	// Dial makes a connection to a peer, with credentials and with what
	// DialOptions returns. The Replicator closes it. It need not be connected.
	Dial func(p Peer) (*grpc.ClientConn, error)
	// Authenticate returns what the caller of an incoming stream has proved, or an
	// error if it is not the node that it names. Nil accepts everyone.
	Authenticate func(ctx context.Context, node string) (Caller, error)
	// Access returns which nodes may read and write a map. Nodes must agree in it. It is called with
	// a lock held and must not call the Replicator. Nil allows all.
	Access func(name string) Access
	// MaxStreamAge is how long a stream lasts: then the peer resumes on a new
	// connection, and both verify each other again. Zero means 1 h.
	MaxStreamAge time.Duration
	// Addr returns the address at which peers reach this node's replication service,
	// host:port. Nil or an empty address: peers know it from elsewhere.
	Addr func() string
	// Mistaken is called when a peer that was dialled turns out to be another life of its node
	// than the one that SetPeers told of. It must not block. Nil: nobody wants to know.
	Mistaken func(node string)
	// Logger receives what becomes of streams. Nil discards it.
	Logger *slog.Logger
	// Now is the wall clock. It should not be set while the node runs: peers
	// measure how far it is from theirs. Nil means time.Now.
	Now func() time.Time
	// Times converts between the kernel's clocks and Now. It is called for each
	// batch. Nil means that no kernel's clock is known, as for maps without time
	// stamps.
	Times func() schema.Times
	// MaxClockAhead is how far the version of a record may be ahead of the local
	// clock. Records beyond are refused one by one, lest one broken clock pull
	// along everyone's. Zero means DefaultMaxClockAhead.
	MaxClockAhead time.Duration
	// MinBackoff and MaxBackoff bound the time between attempts to connect to a peer that
	// membership says lives. Zero means 100 ms and 1 s.
	MinBackoff, MaxBackoff time.Duration
	// RewalkDelay is the time after which a map is walked again from the
	// beginning because the table refused a record; it doubles each time, up to
	// 16 times as long. Zero means 30 s.
	RewalkDelay time.Duration
	// UnknownGrace is how long after the first call of SetPeers an owner that
	// was never seen in the cluster is waited for before it counts as gone. Zero
	// means 60 s.
	UnknownGrace time.Duration

	// Expected is the number of peers that belong to the cluster, seen or not. While fewer are live
	// after the start, tombstones are kept for their whole lifetime.
	Expected int

	heartbeat, silence, advance, pace, probe, unfit, compare, audit, reroute, stall time.Duration // set by tests
}

func (o *Options) complete() error {
	switch {
	case o.Self.Node == "" || len(o.Self.Node) > maxNodeName:
		return fmt.Errorf("create replicator for node name of %d bytes: %w", len(o.Self.Node), ErrOptions)
	case o.Dial == nil:
		return fmt.Errorf("create replicator without a dialler: %w", ErrOptions)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Access == nil {
		o.Access = func(string) Access { return Access{} }
	}
	if o.Mistaken == nil {
		o.Mistaken = func(string) {}
	}
	if o.Addr == nil {
		o.Addr = func() string { return "" }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Times == nil {
		o.Times = func() schema.Times { return schema.Times{} }
	}
	orDefault(&o.MaxClockAhead, DefaultMaxClockAhead)
	orDefault(&o.MinBackoff, 100*time.Millisecond)
	orDefault(&o.MaxBackoff, time.Second)
	orDefault(&o.RewalkDelay, 30*time.Second)
	orDefault(&o.UnknownGrace, time.Minute)
	orDefault(&o.MaxStreamAge, time.Hour)
	orDefault(&o.heartbeat, time.Second)
	orDefault(&o.silence, 5*time.Second)
	orDefault(&o.advance, 100*time.Millisecond)
	orDefault(&o.pace, time.Millisecond)
	orDefault(&o.probe, 5*time.Second)
	orDefault(&o.unfit, time.Minute)
	orDefault(&o.compare, time.Second)
	orDefault(&o.audit, time.Minute)
	orDefault(&o.reroute, 2*time.Second)
	orDefault(&o.stall, 10*time.Second)
	return nil
}

func orDefault(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}
