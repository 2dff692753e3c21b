package peers

import (
	"crypto/x509"
	"net"
	"path"
	"slices"
	"strings"
)

// replica reports whether a certificate of the CA may replicate. If AllowedNames is empty, all
// certificates except those of observers may replicate.
func (o *CredentialsOptions) replica(leaf *x509.Certificate) bool {
	if len(o.AllowedNames) == 0 {
		return !o.observer(leaf)
	}
	return matchLeaf(o.AllowedNames, leaf)
}

// observer reports whether a certificate may observe.
func (o *CredentialsOptions) observer(leaf *x509.Certificate) bool {
	return matchLeaf(o.Observers, leaf)
}

// MatchName reports whether one of the patterns matches a name. It ignores case and a trailing dot.
// The pattern * matches any characters except a slash.
func MatchName(globs []string, name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return slices.ContainsFunc(globs, func(glob string) bool {
		ok, err := path.Match(strings.ToLower(glob), name)
		return err == nil && ok
	})
}

// matchLeaf reports whether one of the patterns matches a DNS name, an IP address or a URI of a
// certificate. A wildcard in the certificate is compared literally.
func matchLeaf(globs []string, leaf *x509.Certificate) bool {
	if slices.ContainsFunc(leaf.DNSNames, func(name string) bool { return MatchName(globs, name) }) {
		return true
	}
	if slices.ContainsFunc(leaf.IPAddresses, func(ip net.IP) bool { return MatchName(globs, ip.String()) }) {
		return true
	}
	for _, uri := range leaf.URIs {
		if MatchName(globs, uri.String()) {
			return true
		}
	}
	return false
}

// plainIdentity returns the permissions of a caller without a certificate, by the name that it has sent.
func (o *CredentialsOptions) plainIdentity(node string) Identity {
	return Identity{
		Replica:  (len(o.AllowedNames) == 0 && !MatchName(o.Observers, node)) || MatchName(o.AllowedNames, node),
		Observer: MatchName(o.Observers, node),
	}
}

// permit returns an error if a verified certificate may not be used. Either the CA has revoked it, or
// the options do not allow its names. dialled means that the certificate belongs to a server, which
// must be a replica.
func (m *tlsState) permit(o *CredentialsOptions, chains [][]*x509.Certificate, dialled bool) error {
	leaf := chains[0][0]
	switch {
	case m.revoked(chains):
		return errRevoked
	case o.replica(leaf), !dialled && o.observer(leaf):
		return nil
	}
	return errNotAllowed
}
