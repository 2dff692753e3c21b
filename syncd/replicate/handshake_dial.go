package replicate

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"mapsync/printable"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// handshake exchanges Hello and Welcome, and measures the clock of the peer.
//
// It runs before the requesting goroutine starts, without a lock, so no other message is on the
// stream. An error ends the gRPC stream, and run retries after a pause. On return without an error,
// the stream counts as established.
func (s *inboundStream) handshake(stream mapsyncv1.ReplicationService_SubscribeClient) error {
	w, err := s.r.exchangeHello(stream)
	if err != nil {
		return err
	}
	// Another incarnation answers at this address: the peer has restarted, or the address is
	// reused. Positions and permits belong to one incarnation, so this stream cannot continue with
	// another one.
	if o := welcomeSender(w); o != s.peer {
		// The credentials verified the name, so the new incarnation is live. SetPeers replaces this
		// stream later.
		if o.Node == s.peer.Node {
			s.r.opt.IncarnationMismatch(o.Node)
			if err := s.r.handleVerified(Peer{Node: o.Node, Incarnation: o.Incarnation, Addr: s.currentPeer().Addr}); err != nil {
				return fmt.Errorf("reach %q of %d: %w", o.Node, o.Incarnation, err)
			}
		}
		return fmt.Errorf("reach %.255q of %d, expected %q of %d: %w",
			o.Node, o.Incarnation, s.peer.Node, s.peer.Incarnation, errProtocol)
	}
	// Time stamps are converted by the offset, so it is measured before the first subscription.
	if err := s.measureClock(stream); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// From here on the status shows the peer as connected, and subscriptions may be sent.
	s.up, s.err, s.since = true, nil, time.Now()
	// They are set before the requesting goroutine starts, which reads them.
	s.supportsOwnerRequests = w.GetOwnerRequests()
	s.supportsReports = w.GetReports()
	s.version, s.release = w.GetProtocolVersion(), release(w.GetRelease())
	s.lastContact.Store(s.since.UnixNano())
	s.r.count.connects.Add(1)
	s.r.opt.Logger.Info("receiving from peer", slog.String("peer", s.peer.Node), slog.String("addr", s.addr))
	return nil
}

// exchangeHello sends a Hello on a new gRPC stream, and returns the Welcome of the peer. The version
// in it is one that this node supports.
//
// It holds no lock. The context of the stream bounds its wait. inboundStream.handshake and
// dialAndVerify call it first on a stream. Its errors wrap errProtocol, or have the gRPC status of
// the peer.
func (r *Replicator) exchangeHello(stream mapsyncv1.ReplicationService_SubscribeClient) (*mapsyncv1.Welcome, error) {
	// Send only reports that the stream has ended; Recv returns the cause.
	versions := r.opt.versions
	err := stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Hello{Hello: &mapsyncv1.Hello{
		ProtocolVersion: versions.lowest, MaxProtocolVersion: versions.highest,
		Self: incarnation(r.opt.Self), Address: r.opt.Addr(), Reports: true, Release: r.opt.Release, Cluster: r.opt.Cluster,
	}}})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("send hello: %w", peerError(err))
	}
	m, err := stream.Recv()
	switch {
	// The peer found no common version. Both nodes report it, because each of them also receives.
	case status.Code(err) == codes.FailedPrecondition:
		// A peer of the release without negotiation names only its own version.
		return nil, fmt.Errorf("offer protocol %s: %w", versions, peerError(err))
	case err != nil:
		return nil, fmt.Errorf("receive welcome: %w", peerError(err))
	}
	w := m.GetWelcome()
	if w == nil {
		return nil, fmt.Errorf("receive %T for a welcome: %w", m.GetMessage(), errProtocol)
	}
	chosen := w.GetProtocolVersion()
	if _, err := versions.choose(r.opt.Self.Node, w.GetSelf().GetNode(), versionRange{chosen, chosen}); err != nil {
		return nil, fmt.Errorf("receive welcome: %w: %w", errProtocol, err)
	}
	return w, r.checkCluster(w.GetCluster())
}

// checkCluster returns an error if the name of a peer's cluster is not that of this node's.
func (r *Replicator) checkCluster(name string) error {
	if name == r.opt.Cluster {
		return nil
	}
	return fmt.Errorf("%w: the setting cluster is %.64q there, and %q here", errCluster, name, r.opt.Cluster)
}

// maxRelease is the maximum size of the release of a peer in bytes.
const maxRelease = 64

// release returns the release of a peer for display.
func release(s string) string { return printable.Truncated(s, maxRelease) }

// errCluster is wrapped by the errors about nodes of another cluster.
var errCluster = errors.New("the node belongs to another cluster")

// welcomeSender returns the name and incarnation in a Welcome. A Welcome without them returns the
// zero Owner, which is the name of no peer.
func welcomeSender(w *mapsyncv1.Welcome) table.Owner {
	return table.Owner{Node: w.GetSelf().GetNode(), Incarnation: w.GetSelf().GetNumber()}
}
