package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// MaxMaps is the maximum number of maps of a Replicator.
const MaxMaps = 1024

// DefaultMaxClockAhead is the default of Options.MaxClockAhead.
const DefaultMaxClockAhead = time.Minute

var (
	// ErrOptions is wrapped by the errors of New.
	ErrOptions = errors.New("invalid replicator options")
	// ErrMap is wrapped by the errors of AddMap.
	ErrMap = errors.New("map cannot be replicated")
	// ErrRunning is returned by all calls of Run but the first.
	ErrRunning = errors.New("replicator has run already")
)

// Peer is a live member of the cluster other than this node.
type Peer struct {
	// Node is the name of the peer.
	Node string
	// Incarnation is the wall clock in Unix nanoseconds at which the process of the peer started.
	Incarnation uint64
	// Addr is the address of the peer's replication service, host:port.
	Addr string
}

// owner returns the name and incarnation of the peer.
func (p Peer) owner() table.Owner {
	return table.Owner{Node: p.Node, Incarnation: p.Incarnation}
}

// Layout describes the entries of a map.
type Layout struct {
	// KeySize is the size of a key in bytes.
	KeySize int
	// ValueSize is the size of a value in bytes.
	ValueSize int
	// LRU reports that the kernel map evicts entries. Nodes may differ in it.
	LRU bool
	// Elements is the number of elements if the kernel map is an array, otherwise 0. A value that carries only zeros
	// is not an entry of an array.
	Elements int
	// Schema describes the fields of keys and values. It must not change after AddMap. Nodes with
	// different schemas replicate the fields that both have by name. Nil: keys and values are
	// opaque bytes, and peers must have the same sizes.
	Schema *schema.Schema
	// Links translates between interface indexes and names. Nil: all translations fail.
	Links schema.Links
	// Kernel returns the present kernel map, or the zero value while there is none. It must not block and must be safe for
	// concurrent use. Nil: unknown.
	Kernel func() KernelMap
}

// KernelMap describes a kernel map to peers.
type KernelMap struct {
	// MaxEntries is the maximum number of entries; 0: there is no kernel map.
	MaxEntries int
	// Type is the type of the map. A map with values for each CPU has the type of the one without.
	Type MapType
	// Flags are the BPF_F_ flags of the creation of the map.
	Flags uint32
}

// MapType is the type of a kernel map.
type MapType = mapsyncv1.MapType

// The types of kernel maps.
const (
	MapTypeHash    = mapsyncv1.MapType_MAP_TYPE_HASH
	MapTypeLRUHash = mapsyncv1.MapType_MAP_TYPE_LRU_HASH
	MapTypeArray   = mapsyncv1.MapType_MAP_TYPE_ARRAY
)

// NodeState determines whether traffic may move to a node.
type NodeState = mapsyncv1.NodeState

// The states of a node.
const (
	NodeStateUnknown  = mapsyncv1.NodeState_NODE_STATE_UNSPECIFIED // of an older release
	NodeStateNotReady = mapsyncv1.NodeState_NODE_STATE_NOT_READY
	NodeStateReady    = mapsyncv1.NodeState_NODE_STATE_READY
	NodeStateDrained  = mapsyncv1.NodeState_NODE_STATE_DRAINED
)

// Options configure a Replicator.
type Options struct {
	// Self is the name and incarnation of this node.
	Self table.Owner
	// Dial creates a connection to a peer, with credentials and with DialOptions. The Replicator
	// owns the connection and closes it. Dial need not wait until the connection is established.
	Dial func(p Peer) (*grpc.ClientConn, error)
	// Authenticate returns the result of the authentication of an incoming stream, or an error if
	// the caller is not the node that it names. Nil accepts every caller.
	Authenticate func(ctx context.Context, node string) (Caller, error)
	// Access returns the nodes that may read and write a map. All nodes must have the same settings.
	// It is called with a lock held and must not call the Replicator. Nil allows all nodes.
	Access func(name string) Access
	// MaxStreamAge is the maximum age of a stream. The peer then resumes on a new connection, and
	// both sides authenticate each other again. Zero: 1 h.
	MaxStreamAge time.Duration
	// Release is the release of this node, for display at its peers.
	Release string
	// Cluster is the name of the cluster. Nodes with another name do not replicate with this one.
	Cluster string
	// State returns whether traffic may move to this node. It is called with a lock held and must not call the Replicator. Nil:
	// unknown.
	State func() NodeState
	// Addr returns the address at which peers reach this node's replication service, host:port. Nil
	// or an empty address: peers get it from gossip or from their settings.
	Addr func() string
	// IncarnationMismatch is called when a dialled peer has another incarnation than the one passed
	// to SetPeers. It must not block. Nil: no call.
	IncarnationMismatch func(node string)
	// Logger receives the log lines of streams. Nil discards them.
	Logger *slog.Logger
	// Now returns the wall clock. If the clock is set, the caller calls ClockStepped. Nil: time.Now.
	Now func() time.Time
	// TableTime returns the time of the tables in nanoseconds. No step of the wall clock changes it. Nil: Now.
	TableTime func() int64
	// WallOffset returns Now minus TableTime in nanoseconds. Nil: 0.
	WallOffset func() int64
	// Unsynchronised reports whether the clock of Now is not synchronised. Peers use it only to name the wrong
	// one of two clocks. Nil: false.
	Unsynchronised func() bool
	// Times converts between the clocks of the kernel and Now. It is called for each batch. Nil: no
	// clock of the kernel is available, as for maps without time stamps.
	Times func() schema.Times
	// MaxClockAhead is the maximum time by which the version of a record may be ahead of the local
	// clock. Records above it are refused one by one, so that one wrong clock does not advance the
	// versions of all nodes. Zero: DefaultMaxClockAhead.
	MaxClockAhead time.Duration
	// MinBackoff and MaxBackoff bound the pause between attempts to connect to a live peer. Zero:
	// 100 ms and 1 s.
	MinBackoff, MaxBackoff time.Duration
	// RepeatFullSyncDelay is the pause before a full sync of a map is repeated because the table
	// refused a record. It doubles each time, up to 16 times the initial value. Zero: 30 s.
	RepeatFullSyncDelay time.Duration
	// UnknownGrace is the time after the first SetPeers in which an owner that was never live may
	// still appear. After it the owner's records are orphaned. Zero: 60 s.
	UnknownGrace time.Duration

	// Expected is the number of peers that belong to the cluster, whether or not they were live yet.
	// While fewer peers are live after the start, tombstones are kept for their whole lifetime.
	Expected int

	// Only tests set the fields below. complete sets each one that is zero to its default, so none is zero afterwards.
	versions                                                                                                                                                  versionRange
	heartbeat, receiveTimeout, positionInterval, batchPause, clockProbeInterval, incompatibleRetry, digestInterval, auditInterval, rerouteDelay, stallTimeout time.Duration
}

// complete sets the defaults and returns an error that wraps ErrOptions if a required option is
// missing.
func (o *Options) complete() error {
	switch {
	case o.Self.Node == "" || len(o.Self.Node) > wire.MaxName:
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
	if o.IncarnationMismatch == nil {
		o.IncarnationMismatch = func(string) {}
	}
	if o.Addr == nil {
		o.Addr = func() string { return "" }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.TableTime == nil {
		now := o.Now
		o.TableTime = func() int64 { return now().UnixNano() }
	}
	if o.WallOffset == nil {
		o.WallOffset = func() int64 { return 0 }
	}
	if o.Unsynchronised == nil {
		o.Unsynchronised = func() bool { return false }
	}
	if o.Times == nil {
		o.Times = func() schema.Times { return schema.Times{} }
	}
	if o.versions == (versionRange{}) {
		o.versions = supportedVersions
	}
	orDefault(&o.MaxClockAhead, DefaultMaxClockAhead)
	orDefault(&o.MinBackoff, 100*time.Millisecond)
	orDefault(&o.MaxBackoff, time.Second)
	orDefault(&o.RepeatFullSyncDelay, 30*time.Second)
	orDefault(&o.UnknownGrace, time.Minute)
	orDefault(&o.MaxStreamAge, time.Hour)
	orDefault(&o.heartbeat, time.Second)
	orDefault(&o.receiveTimeout, 5*time.Second)
	orDefault(&o.positionInterval, 100*time.Millisecond)
	orDefault(&o.batchPause, time.Millisecond)
	orDefault(&o.clockProbeInterval, 5*time.Second)
	orDefault(&o.incompatibleRetry, time.Minute)
	orDefault(&o.digestInterval, time.Second)
	orDefault(&o.auditInterval, time.Minute)
	orDefault(&o.rerouteDelay, 2*time.Second)
	orDefault(&o.stallTimeout, 10*time.Second)
	return nil
}

// orDefault sets a duration that is not above 0 to v.
func orDefault(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}
