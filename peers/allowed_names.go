package peers

import (
	"crypto/x509"
	"net"
	"path"
	"slices"
	"strings"
)

// replica reports whether a certificate of the CA may replicate. If AllowedNames is empty, all certificates except those of
// observers may replicate. A certificate that an observer's pattern matches only across labels has neither right.
func (o *CredentialsOptions) replica(leaf *x509.Certificate) bool {
	if len(o.AllowedNames) == 0 {
		return !matchLeaf(o.Observers, leaf, matchAcross)
	}
	return matchLeaf(o.AllowedNames, leaf, matchLabels)
}

// observer reports whether a certificate may observe.
func (o *CredentialsOptions) observer(leaf *x509.Certificate) bool {
	return matchLeaf(o.Observers, leaf, matchLabels)
}

// MatchName reports whether one of the patterns matches a name. It ignores case and a trailing dot. The parts of a name
// between dots and slashes are matched one by one: *, ? and [a-z] match neither, so that lb* matches no name of another
// domain.
func MatchName(globs []string, name string) bool { return matchName(globs, name, matchLabels) }

func matchName(globs []string, name string, match func(glob, name string) bool) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return slices.ContainsFunc(globs, func(glob string) bool { return match(strings.ToLower(glob), name) })
}

// matchLabels reports whether each label of a pattern matches that of the name.
func matchLabels(glob, name string) bool {
	return slices.EqualFunc(labels(glob), labels(name), matchText)
}

// labels returns the parts of a name or of a pattern. Each but the last ends with a dot or a slash.
func labels(name string) (list []string) {
	for {
		end := strings.IndexAny(name, "./") + 1
		if end == 0 {
			return append(list, name)
		}
		list, name = append(list, name[:end]), name[end:]
	}
}

// matchAcross reports whether a pattern matches a name. Its * also matches dots and slashes.
func matchAcross(glob, name string) bool {
	dots := strings.NewReplacer("/", ".")
	return matchText(dots.Replace(glob), dots.Replace(name))
}

// matchText reports whether a pattern matches a name. Its * also matches dots.
func matchText(glob, name string) bool {
	ok, err := path.Match(glob, name)
	return err == nil && ok
}

// matchLeaf reports whether one of the patterns matches a DNS name, an IP address or a URI of a
// certificate. A wildcard in the certificate is compared literally.
func matchLeaf(globs []string, leaf *x509.Certificate, match func(glob, name string) bool) bool {
	if slices.ContainsFunc(leaf.DNSNames, func(name string) bool { return matchName(globs, name, match) }) {
		return true
	}
	if slices.ContainsFunc(leaf.IPAddresses, func(ip net.IP) bool { return matchName(globs, ip.String(), match) }) {
		return true
	}
	for _, uri := range leaf.URIs {
		if matchName(globs, uri.String(), match) {
			return true
		}
	}
	return false
}

// plainIdentity returns the permissions of a caller without a certificate, by the name that it has sent.
func (o *CredentialsOptions) plainIdentity(node string) Identity {
	return Identity{
		Replica:  (len(o.AllowedNames) == 0 && !matchName(o.Observers, node, matchAcross)) || MatchName(o.AllowedNames, node),
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
