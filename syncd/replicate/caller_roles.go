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

// errDenied is wrapped by the errors about a request that the settings or the certificate do not allow.
var errDenied = errors.New("not allowed")

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
	if !observe && s.clusterErr != nil {
		return status.Errorf(codes.FailedPrecondition, "%q: %v", s.target.Node, s.clusterErr)
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
