package peers

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Identity is the verified identity of the caller of a gRPC handler.
type Identity struct {
	// Certificate identifies the caller's certificate, regardless of which of its names the caller
	// uses. It is empty without TLS.
	Certificate string
	// Replica reports that the caller may replicate, Observer that it may observe.
	Replica, Observer bool
	// Until is the time at which the first certificate of either side expires, 0 without TLS.
	Until time.Time
}

// CheckGlobs returns an error if a name pattern is invalid.
func CheckGlobs(globs []string) error {
	for _, glob := range globs {
		if glob == "" || slices.ContainsFunc(labels(glob), malformed) {
			return fmt.Errorf("pattern %q is not usable: write a name with *, ? or [a-z] between its dots and slashes", glob)
		}
	}
	return nil
}

func malformed(label string) bool {
	_, err := path.Match(label, "")
	return err != nil
}

// Identify returns the identity of the caller of a gRPC handler with context ctx. node is the name
// that the caller claims. Identify returns a gRPC status with code PermissionDenied if the certificate
// is not for that node, or permits neither replication nor observing. It counts and logs the refusal.
// Insecure credentials accept the name without proof.
func (c *Credentials) Identify(ctx context.Context, node string) (Identity, error) {
	if !c.Secure() {
		return c.opts.Load().plainIdentity(node), nil
	}
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return Identity{}, status.Error(codes.PermissionDenied, "verify peer: the call has no peer")
	}
	info, ok := caller.AuthInfo.(authInfo)
	if !ok {
		return Identity{}, status.Error(codes.PermissionDenied, "verify peer: the caller has no verified certificate")
	}
	leaf := info.State.VerifiedChains[0][0]
	o := c.opts.Load()
	id := Identity{Certificate: certificateOf(info), Replica: o.replica(leaf), Observer: o.observer(leaf), Until: info.until}
	if namesNode(leaf, node) && (id.Replica || id.Observer) {
		return id, nil
	}
	refused := &RefusedError{
		Reason: ReasonWrongName,
		Remote: caller.Addr.String(),
		Cause: fmt.Sprintf("its node name is %s, but its certificate is for %s: issue each node a certificate with its name as DNS name",
			quoteName(node), nameList(leaf)),
	}
	if namesNode(leaf, node) {
		refused.Reason, refused.Cause = ReasonNotAllowed, notAllowed(leaf)
	}
	c.refused(true, refused)
	return Identity{}, status.Error(codes.PermissionDenied, refused.Error())
}

// VerifyPeer returns an error if the caller of a gRPC handler with context ctx has no certificate of
// node that may replicate or observe; see Identify.
func (c *Credentials) VerifyPeer(ctx context.Context, node string) error {
	_, err := c.Identify(ctx, node)
	return err
}

func notAllowed(leaf *x509.Certificate) string {
	return "its certificate (for " + nameList(leaf) + ") matches none of allowed-names and observers"
}

// namesNode reports whether leaf contains the node's name. A DNS name identifies the node with the
// same spelling and the node with the lower-case spelling. An IP address identifies its canonical
// spelling. A wildcard identifies no node. Replication compares node names exactly. If other spellings
// were accepted, one certificate could represent many nodes.
func namesNode(leaf *x509.Certificate, node string) bool {
	return slices.ContainsFunc(leaf.DNSNames, func(name string) bool {
		return !strings.Contains(name, "*") && (name == node || strings.ToLower(name) == node)
	}) || slices.ContainsFunc(leaf.IPAddresses, func(ip net.IP) bool { return ip.String() == node })
}
