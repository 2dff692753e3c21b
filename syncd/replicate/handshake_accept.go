package replicate

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

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
	}
	if err := checkIntroduction(o.Node, h.GetAddress()); err != nil {
		return none, status.Error(codes.InvalidArgument, err.Error())
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

// checkIntroduction returns an error if the name or the address in a Hello is malformed. An observer has no address.
func checkIntroduction(node, addr string) error {
	if err := wire.CheckName(node); err != nil || addr == "" {
		return err
	}
	return checkAddress(addr)
}

// identify authenticates a caller as a node with Options.Authenticate. ctx is that of the stream,
// which contains the certificate. The caller holds no lock.
func (r *Replicator) identify(ctx context.Context, node string) (Caller, error) {
	if r.opt.Authenticate == nil {
		return anyCaller, nil
	}
	return r.opt.Authenticate(ctx, node)
}
