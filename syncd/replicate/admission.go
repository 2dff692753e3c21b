package replicate

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
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
