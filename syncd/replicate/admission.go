package replicate

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

var (
	// errDenied is wrapped by the errors about a request that the settings or the certificate do not allow.
	errDenied = errors.New("not allowed")
	// errMaxAge ends a stream at its maximum age. The peer resumes on a new stream.
	errMaxAge = errors.New("maximum age of a stream reached")
)

// Caller is the result of the authentication of an incoming stream.
type Caller struct {
	// Certificate identifies the certificate of the caller. Stream limits are counted per
	// certificate. Empty: limits are counted per node name.
	Certificate string
	// Replica allows the caller to replicate, Observer allows it to observe.
	Replica, Observer bool
	// Until is the earlier end of validity of the certificates of both sides; zero: no certificate.
	// syncd ends the stream before that time, and the peer resumes it with new certificates.
	Until time.Time
}

// anyCaller is the Caller of every stream when Options.Authenticate is nil. It has all roles.
var anyCaller = Caller{Replica: true, Observer: true}

// Access is the set of nodes that may read and write one map. A nil function allows all nodes.
type Access struct {
	// Read reports whether a node may receive this node's records.
	Read func(node string) bool
	// Write reports whether this node accepts the records of a node.
	Write func(node string) bool
}

// reads and writes report whether a node may read and write the map.
func (a *Access) reads(node string) bool  { return a.Read == nil || a.Read(node) }
func (a *Access) writes(node string) bool { return a.Write == nil || a.Write(node) }

// maxHelloBytes bounds the first message of a stream, in bytes. Until the Hello is checked, the
// caller has only shown a certificate.
const maxHelloBytes = 4 << 10

// admitted is the result of a Hello that was accepted.
type admitted struct {
	// node is the name and incarnation of the caller.
	node table.Owner
	// caller is the result of its authentication.
	caller Caller
	// version is the version of the protocol for the stream.
	version uint32
}

// checkHello checks a Hello and authenticates the caller. The errors are gRPC statuses.
//
// The code shows the cause to the peer: InvalidArgument is a faulty request, FailedPrecondition a
// release without a common version, and PermissionDenied a certificate or a setting. The peer
// retries in all cases. The caller holds no lock.
func (r *Replicator) checkHello(ctx context.Context, h *mapsyncv1.Hello) (admitted, error) {
	var none admitted
	o := table.Owner{Node: h.GetSelf().GetNode(), Incarnation: h.GetSelf().GetNumber()}
	switch {
	case h == nil:
		return none, status.Error(codes.InvalidArgument, "the first message must be a hello")
	case proto.Size(h) > maxHelloBytes:
		return none, status.Errorf(codes.InvalidArgument, "hello of %d bytes", proto.Size(h))
	case wire.CheckName(o.Node) != nil:
		return none, status.Errorf(codes.InvalidArgument, "node name of %d bytes", len(o.Node))
	}
	version, err := r.opt.versions.choose(r.opt.Self.Node, o.Node, offered(h))
	switch {
	case errors.Is(err, errNoRange):
		return none, status.Error(codes.InvalidArgument, err.Error())
	case err != nil:
		return none, status.Error(codes.FailedPrecondition, err.Error())
	}
	caller, err := r.identify(ctx, o.Node)
	if err != nil {
		return none, status.Errorf(codes.PermissionDenied, "authenticate as %q: %v", o.Node, err)
	}
	return admitted{node: o, caller: caller, version: version}, nil
}

// identify authenticates a caller as a node with Options.Authenticate. ctx is that of the stream,
// which contains the certificate. The caller holds no lock.
func (r *Replicator) identify(ctx context.Context, node string) (Caller, error) {
	if r.opt.Authenticate == nil {
		return anyCaller, nil
	}
	return r.opt.Authenticate(ctx, node)
}

// Reauthorise authenticates the callers of all streams again. It ends the streams of callers that
// have lost a role or that fail to authenticate.
//
// It is called after a reload of the settings. A stream keeps the roles with which it began, so a
// role that was granted takes effect with the next stream. Streams that may continue are not
// interrupted.
func (r *Replicator) Reauthorise() {
	r.mu.Lock()
	sessions := slices.Collect(maps.Keys(r.outboundStreams))
	r.mu.Unlock()
	for _, s := range sessions {
		// The streams are authenticated after r.mu is released.
		now, err := s.identify()
		// The caller has kept all the roles that it had.
		if err == nil && (now.Replica || !s.caller.Replica) && (now.Observer || !s.caller.Observer) {
			continue
		}
		if err == nil {
			err = status.Errorf(codes.PermissionDenied, "%q has lost a role: %v (settings allowed-names, observers)", s.target.Node, errDenied)
		}
		s.cancel(err)
	}
}

// UpdateAccess reads again from Options.Access which nodes may read and write a map, and restarts
// the streams of that map. The new streams refuse nodes that have lost their access. It does
// nothing if the replicator does not have the map.
//
// The table stays, and so do all of its records. This node's own subscriptions to the map begin
// with full syncs. The error wraps ErrMap, and nothing has changed then.
func (r *Replicator) UpdateAccess(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.localMaps()[name]
	if old == nil {
		return nil
	}
	// A new localMap makes all streams of the map begin again. The generation stays, so the peers'
	// subscriptions resume.
	m, err := newLocalMap(name, old.layout, old.table)
	if err != nil {
		return err
	}
	m.generation, m.access = old.generation, r.opt.Access(name)
	all := maps.Clone(r.localMaps())
	all[name] = m
	r.maps.Store(&all)
	r.notify()
	return nil
}

// limitKey returns the key by which streams are counted: the certificate, or the node name in lower
// case without a trailing dot. A caller that opens streams under many node names with one
// certificate therefore has one limit. Without TLS, the node name is the key.
func (s *outboundStream) limitKey() string {
	return cmp.Or(s.caller.Certificate, strings.ToLower(strings.TrimSuffix(s.target.Node, ".")))
}

// evictStream ends one stream of a caller that already has maxStreams streams: the oldest one that
// observes, else the oldest one. Observers therefore cannot exclude a replica. Streams that have
// ended and are still registered do not count. The caller holds Replicator.mu. The evicted stream
// ends with errReplaced, and its peer retries.
func (r *Replicator) evictStream(limitKey string) {
	// The oldest observer is preferred over the oldest replica.
	same, oldest := 0, (*outboundStream)(nil)
	for o := range r.outboundStreams {
		if o.limitKey() != limitKey || o.isDone() {
			continue
		}
		same++
		if oldest == nil || (o.observing.Load() && !oldest.observing.Load()) ||
			(o.observing.Load() == oldest.observing.Load() && o.startedAt.Before(oldest.startedAt)) {
			oldest = o
		}
	}
	if same >= maxStreams {
		oldest.cancel(errReplaced)
	}
}

// isDone reports whether the stream was cancelled or has ended. Its goroutines may still be
// running.
func (s *outboundStream) isDone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// checkRole returns a gRPC status if the caller may not subscribe in the given role. The status
// ends the stream. A role is checked with the first subscription, because the Hello does not
// contain it. The caller holds s.mu.
func (s *outboundStream) checkRole(observe bool) error {
	switch {
	case observe && !s.caller.Observer:
		return status.Errorf(codes.PermissionDenied, "%q is not among the observers of %q: %v (setting observers)",
			s.target.Node, s.r.opt.Self.Node, errDenied)
	case !observe && !s.caller.Replica:
		return status.Errorf(codes.PermissionDenied, "%q may observe %q, but not replicate: %v (setting allowed-names)",
			s.target.Node, s.r.opt.Self.Node, errDenied)
	}
	if observe {
		// Observers are logged, because they receive the records of the map.
		s.r.opt.Logger.Info("observer connected", slog.String("observer", s.target.Node), slog.String("remote", s.remote))
	}
	return nil
}

// remoteAddr returns the address of the caller without the port, or an empty string if gRPC has none.
func remoteAddr(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
			return host
		}
		return p.Addr.String()
	}
	return ""
}

// Observer is a stream of a program that receives records and replicates nothing back.
type Observer struct {
	// Name is the name in its Hello. With TLS, its certificate is valid for that name.
	Name string
	// Addr is the address from which it connected, without the port.
	Addr string
	// Since is the time at which it connected.
	Since time.Time
	// Maps are the names of the maps that it receives now, sorted.
	Maps []string
}

// Observers returns all observing streams, oldest first.
//
// A stream counts from its first subscription on, even while no map is served. The caller owns the
// slices. The locks of the replicator and of each stream are held one after the other: see doc.go.
func (r *Replicator) Observers() []Observer {
	r.mu.Lock()
	var sessions []*outboundStream
	for s := range r.outboundStreams {
		if s.observing.Load() {
			sessions = append(sessions, s)
		}
	}
	r.mu.Unlock()
	all := make([]Observer, 0, len(sessions))
	for _, s := range sessions {
		o := Observer{Name: s.target.Node, Addr: s.remote, Since: s.startedAt, Maps: []string{}}
		s.mu.Lock()
		for _, f := range s.maps {
			if f.serving.Load() && !f.unsubscribed.Load() {
				o.Maps = append(o.Maps, f.name)
			}
		}
		s.mu.Unlock()
		slices.Sort(o.Maps)
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b Observer) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return all
}
