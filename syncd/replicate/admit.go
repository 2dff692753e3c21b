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
	"mapsync/syncd/table"
)

var (
	errDenied = errors.New("not allowed")
	errAged   = errors.New("maximum age of a stream reached")
)

// Caller is what the caller of an incoming stream has proved.
type Caller struct {
	// Certificate identifies the certificate that it showed; limits count by it.
	// Empty: they count by the node name.
	Certificate string
	// Replica says that it may replicate, Observer that it may observe.
	Replica, Observer bool
	// Until is when the certificate of either side ends, 0 if there is none. The stream ends
	// before that, so that the peer resumes it with new certificates.
	Until time.Time
}

// anyCaller is the Caller where nothing is authenticated.
var anyCaller = Caller{Replica: true, Observer: true}

// Access is which nodes may read and write one map. Nil allows all.
type Access struct {
	// Read reports whether a node may receive this node's records.
	Read func(node string) bool
	// Write reports whether this node accepts a node's records.
	Write func(node string) bool
}

func (a *Access) reads(node string) bool  { return a.Read == nil || a.Read(node) }
func (a *Access) writes(node string) bool { return a.Write == nil || a.Write(node) }

// maxHelloBytes bounds the first message of a stream: until it was checked, the
// caller has shown nothing but a certificate.
const maxHelloBytes = 4 << 10

// checkHello returns who the caller is, and what it has proved. Its errors are
// gRPC statuses.
func (r *Replicator) checkHello(ctx context.Context, h *mapsyncv1.Hello) (table.Owner, Caller, error) {
	o := table.Owner{Node: h.GetSelf().GetNode(), Incarnation: h.GetSelf().GetNumber()}
	switch {
	case h == nil:
		return o, Caller{}, status.Error(codes.InvalidArgument, "the first message must be a hello")
	case proto.Size(h) > maxHelloBytes:
		return o, Caller{}, status.Errorf(codes.InvalidArgument, "hello of %d bytes", proto.Size(h))
	case h.GetProtocolVersion() != protocolVersion:
		return o, Caller{}, status.Errorf(codes.FailedPrecondition, "protocol version %d is not version %d",
			h.GetProtocolVersion(), protocolVersion)
	case checkName(o.Node) != nil:
		return o, Caller{}, status.Errorf(codes.InvalidArgument, "node name of %d bytes", len(o.Node))
	}
	caller, err := r.identify(ctx, o.Node)
	if err != nil {
		return o, Caller{}, status.Errorf(codes.PermissionDenied, "authenticate as %q: %v", o.Node, err)
	}
	return o, caller, nil
}

// identify returns what a caller has proved.
func (r *Replicator) identify(ctx context.Context, node string) (Caller, error) {
	if r.opt.Authenticate == nil {
		return anyCaller, nil
	}
	return r.opt.Authenticate(ctx, node)
}

// Reauthorise authenticates the callers of all streams again, and ends the streams of those that
// may do less than before.
func (r *Replicator) Reauthorise() {
	r.mu.Lock()
	sessions := slices.Collect(maps.Keys(r.sessions))
	r.mu.Unlock()
	for _, s := range sessions {
		now, err := s.identify()
		if err == nil && (now.Replica || !s.caller.Replica) && (now.Observer || !s.caller.Observer) {
			continue
		}
		if err == nil {
			err = status.Errorf(codes.PermissionDenied, "%q has lost a role: %v (settings allowed-names, observers)", s.target.Node, errDenied)
		}
		s.cancel(err)
	}
}

// UpdateAccess asks again which nodes may read and write a map, and begins its streams anew: those
// that are forbidden now are refused. It does nothing if the replicator does not have the map.
func (r *Replicator) UpdateAccess(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.localMaps()[name]
	if old == nil {
		return nil
	}
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

// holder returns what limits count by: the certificate, or the name as any
// spelling of it has it.
func (s *session) holder() string {
	return cmp.Or(s.caller.Certificate, strings.ToLower(strings.TrimSuffix(s.target.Node, ".")))
}

// makeRoom ends the oldest stream of a holder if there are as many as may be: one
// that observes, so that observers cannot keep a replica out. Streams that have ended and
// are still registered do not count. The lock is held.
func (r *Replicator) makeRoom(holder string) {
	same, oldest := 0, (*session)(nil)
	for o := range r.sessions {
		if o.holder() != holder || o.isDone() {
			continue
		}
		same++
		if oldest == nil || (o.observing.Load() && !oldest.observing.Load()) ||
			(o.observing.Load() == oldest.observing.Load() && o.begun.Before(oldest.begun)) {
			oldest = o
		}
	}
	if same >= maxStreams {
		oldest.cancel(errReplaced)
	}
}

// isDone reports whether the session was cancelled, or its stream has ended.
func (s *session) isDone() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// admit returns an error if the caller may not subscribe in a role.
func (s *session) admit(observe bool) error {
	switch {
	case observe && !s.caller.Observer:
		return status.Errorf(codes.PermissionDenied, "%q is not among the observers of %q: %v (setting observers)",
			s.target.Node, s.r.opt.Self.Node, errDenied)
	case !observe && !s.caller.Replica:
		return status.Errorf(codes.PermissionDenied, "%q may observe %q, but not replicate: %v (setting allowed-names)",
			s.target.Node, s.r.opt.Self.Node, errDenied)
	}
	if observe {
		s.r.opt.Logger.Info("observer connected", slog.String("observer", s.target.Node), slog.String("remote", s.remote))
	}
	return nil
}

// remoteOf returns the address of the caller.
func remoteOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
			return host
		}
		return p.Addr.String()
	}
	return ""
}

// Observer is a stream that replicates nothing back.
type Observer struct {
	// Name is the name that it has given; with TLS its certificate is for it.
	Name string
	// Addr is the address that it connected from.
	Addr string
	// Since is when it connected.
	Since time.Time
	// Maps are the maps that it receives.
	Maps []string
}

// Observers returns the streams that observe, oldest first.
func (r *Replicator) Observers() []Observer {
	r.mu.Lock()
	var sessions []*session
	for s := range r.sessions {
		if s.observing.Load() {
			sessions = append(sessions, s)
		}
	}
	r.mu.Unlock()
	all := make([]Observer, 0, len(sessions))
	for _, s := range sessions {
		o := Observer{Name: s.target.Node, Addr: s.remote, Since: s.begun, Maps: []string{}}
		s.mu.Lock()
		for _, f := range s.feeds {
			if f.serving.Load() && !f.unwanted.Load() {
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
