package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// Reason is why a connection between nodes did not come about.
type Reason string

// The reasons, as they stand in metrics.
const (
	// ReasonPlain: the other side speaks no TLS.
	ReasonPlain Reason = "plain"
	// ReasonTLS: the other side speaks TLS, and this node was told not to.
	ReasonTLS Reason = "tls"
	// ReasonNoCertificate: the client showed no certificate.
	ReasonNoCertificate Reason = "no_certificate"
	// ReasonUnknownCA: the certificate was signed by a CA that is not ours.
	ReasonUnknownCA Reason = "unknown_ca"
	// ReasonExpired: the certificate is no longer valid.
	ReasonExpired Reason = "expired"
	// ReasonNotYetValid: the certificate is not valid yet.
	ReasonNotYetValid Reason = "not_yet_valid"
	// ReasonWrongName: the certificate is another node's.
	ReasonWrongName Reason = "wrong_name"
	// ReasonBadCertificate: the certificate is unfit for another cause.
	ReasonBadCertificate Reason = "bad_certificate"
	// ReasonRevoked: the CA has revoked the certificate.
	ReasonRevoked Reason = "revoked"
	// ReasonNotAllowed: the certificate matches neither AllowedNames nor Observers.
	ReasonNotAllowed Reason = "not_allowed"
	// ReasonRefusedByPeer: the other side refused this node's certificate.
	ReasonRefusedByPeer Reason = "refused_by_peer"
	// ReasonProtocol: no common TLS version, or the other side is no gRPC.
	ReasonProtocol Reason = "protocol"
	// ReasonClosed: the connection ended or timed out during the handshake, as
	// port probes do.
	ReasonClosed Reason = "closed"
	// ReasonOther is everything else.
	ReasonOther Reason = "other"
)

// RefusedError is a connection that was refused, by either side.
type RefusedError struct {
	// Reason is the cause, for a metric.
	Reason Reason
	// Remote is the address of the other side.
	Remote string
	// Cause says what is wrong and what to do.
	Cause string
	// Err is the error underneath.
	Err error
}

// Error returns the cause and the other side's address.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("connection with %s refused: %s", e.Remote, e.Cause)
}

// Unwrap returns the error underneath.
func (e *RefusedError) Unwrap() error { return e.Err }

// handshake is one attempt, with what is needed to explain its failure.
type handshake struct {
	// own is what this node showed.
	own *material
	// dialled is the node name that the client asked for.
	dialled string
	remote  string
	server  bool
}

// explain turns the error of a handshake into one that names the cause.
func (h handshake) explain(err error) *RefusedError {
	refused := h.cause(err)
	refused.Cause = printable(truncated(refused.Cause, maxCause))
	return refused
}

func (h handshake) cause(err error) *RefusedError {
	refused := &RefusedError{Reason: ReasonOther, Remote: h.remote, Cause: err.Error(), Err: err}
	if verification, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		h.explainVerification(refused, verification)
		return refused
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		refused.Reason = ReasonPlain
		refused.Cause = "it does not speak TLS: give that node TLS files too, or check that this is its address"
		return refused
	}
	if alert := remoteAlert(err); alert != "" {
		refused.Reason = ReasonRefusedByPeer
		refused.Cause = "it refused this node's certificate (" + alert + "): " + h.ownFault(alert, time.Now())
		if alert == alertText(alertProtocolVersion) {
			refused.Reason = ReasonProtocol
			refused.Cause = "it does not speak TLS 1.3"
		}
		return refused
	}
	if text := err.Error(); strings.Contains(text, "didn't provide a certificate") {
		refused.Reason = ReasonNoCertificate
		refused.Cause = "the client showed no certificate: is it a node of this cluster?"
	} else if strings.Contains(text, "unsupported versions") || strings.Contains(text, "unsupported protocol version") {
		refused.Reason = ReasonProtocol
		refused.Cause = "it does not speak TLS 1.3"
	} else if strings.Contains(text, "ALPN") || strings.Contains(text, "application protocol") {
		refused.Reason = ReasonProtocol
		refused.Cause = "it speaks TLS, but not gRPC: check that this is a node's service address"
	} else if isClosed(err) {
		refused.Reason = ReasonClosed
		refused.Cause = "it ended the connection, or was silent, during the TLS handshake"
	}
	return refused
}

// isClosed reports whether err only says that the other side went away.
func isClosed(err error) bool {
	for _, closed := range []error{
		io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE,
		os.ErrDeadlineExceeded, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, closed) {
			return true
		}
	}
	return false
}

// explainVerification names what is wrong with the peer's certificate.
func (h handshake) explainVerification(refused *RefusedError, err *tls.CertificateVerificationError) {
	leaf := &x509.Certificate{}
	if len(err.UnverifiedCertificates) > 0 {
		leaf = err.UnverifiedCertificates[0]
	}
	whose := "its certificate (for " + nameList(leaf) + ") "
	refused.Reason = ReasonBadCertificate
	refused.Cause = whose + "is not acceptable: " + err.Err.Error()

	switch {
	case errors.Is(err, errRevoked):
		refused.Reason, refused.Cause = ReasonRevoked, whose+"is revoked: issue that node a new one"
		return
	case errors.Is(err, errNotAllowed):
		refused.Reason, refused.Cause = ReasonNotAllowed, notAllowed(leaf)
		return
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		refused.Reason = ReasonUnknownCA
		refused.Cause = whose + "was signed by an unknown CA (" + issuerName(leaf) + "): give all nodes the same CA file"
		return
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		refused.Reason = ReasonWrongName
		refused.Cause = whose + "does not name node " + plainName(h.dialled) + ", which was dialled: issue each node a certificate with its name as DNS name"
		return
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired && invalid.Cert != nil {
		explainTime(refused, whose, leaf, invalid.Cert)
	}
}

// explainTime names the certificate of a chain that is not valid now: the node's, or that of a CA.
func explainTime(refused *RefusedError, whose string, leaf, invalid *x509.Certificate) {
	renew := "renew it"
	if !invalid.Equal(leaf) {
		whose += "was signed by the CA " + subjectName(invalid) + ", whose certificate "
		renew = "renew the CA's certificate"
	}
	if time.Now().Before(invalid.NotBefore) {
		refused.Reason = ReasonNotYetValid
		refused.Cause = whose + "is not yet valid, but from " + stamp(invalid.NotBefore) + ": check the clocks of both nodes"
		return
	}
	refused.Reason = ReasonExpired
	refused.Cause = whose + "expired at " + stamp(invalid.NotAfter) + ": " + renew + ", or check this node's clock"
}

// ownFault guesses why the peer sent alert about this node's certificate. The
// alert is all that the peer says, so this looks for what it can have meant.
func (h handshake) ownFault(alert string, now time.Time) string {
	leaf := h.own.cert.Leaf
	switch {
	case now.After(leaf.NotAfter):
		return "it expired at " + stamp(leaf.NotAfter) + ": renew it"
	case now.After(h.own.ending.NotAfter):
		return "the certificate of the CA " + subjectName(h.own.ending) + ", which signed it, expired at " + stamp(h.own.ending.NotAfter) + ": renew that"
	case now.Before(leaf.NotBefore):
		return "it is not yet valid, but from " + stamp(leaf.NotBefore) + ": check this node's clock"
	case alert == alertText(alertExpired):
		return "it is valid from " + stamp(leaf.NotBefore) + " to " + stamp(leaf.NotAfter) + ", so the clocks of the nodes differ"
	case h.server && h.dialled != "" && !namesNode(leaf, h.dialled):
		return "it is for " + nameList(leaf) + ", but this node was dialled as " + plainName(h.dialled) + ": node names and certificates do not fit"
	}
	return "the peer does not trust the CA that signed it (" + issuerName(leaf) + "), or its allowed-names or its revocation list refuse it: give all nodes the same CA file, and see the peer's log"
}

// stamp formats a time for a message.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

const (
	// maxCause and maxNameText bound texts in bytes that hold what the other side sends, before it
	// has proved anything.
	maxCause    = 1 << 10
	maxNameText = 64
	// maxNamesListed is how many names of a certificate are listed.
	maxNamesListed = 4
)

// truncated returns the first bytes of a text, and marks the cut.
func truncated(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// printable replaces control characters.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// nameList lists the names in a certificate.
func nameList(leaf *x509.Certificate) string {
	var names []string
	total := len(leaf.DNSNames) + len(leaf.IPAddresses) + len(leaf.URIs)
	for _, name := range leaf.DNSNames[:min(len(leaf.DNSNames), maxNamesListed)] {
		names = append(names, plainName(name))
	}
	for _, ip := range leaf.IPAddresses[:min(len(leaf.IPAddresses), maxNamesListed-len(names))] {
		names = append(names, ip.String())
	}
	for _, uri := range leaf.URIs[:min(len(leaf.URIs), maxNamesListed-len(names))] {
		names = append(names, plainText(uri.String()))
	}
	switch {
	case total == 0:
		return "no name"
	case total > len(names):
		names = append(names, fmt.Sprintf("and %d more", total-len(names)))
	}
	return strings.Join(names, ", ")
}

// plainName quotes a name only if it is not made of what names are made of: it
// comes from the other side.
func plainName(name string) string {
	if CheckNodeName(strings.TrimPrefix(name, "*.")) == nil {
		return name
	}
	return strconv.Quote(truncated(name, maxNameText))
}

// plainText quotes a URI, or the name of a CA, if it is long or has characters that need it.
func plainText(uri string) string {
	if len(uri) <= 2*maxNameText && strconv.Quote(uri) == `"`+uri+`"` {
		return uri
	}
	return strconv.Quote(truncated(uri, 2*maxNameText))
}

// issuerName and subjectName return the names of CAs in a certificate, quoted if they need that.
func issuerName(cert *x509.Certificate) string  { return plainText(cert.Issuer.String()) }
func subjectName(cert *x509.Certificate) string { return plainText(cert.Subject.String()) }

// namesNode reports whether leaf carries the node's name. A DNS name stands for the
// node of the same spelling and for the one in lower case, an IP address for its
// canonical spelling. A wildcard names no node. Replication compares node names
// exactly: if other spellings passed, one certificate would be many nodes.
func namesNode(leaf *x509.Certificate, node string) bool {
	return slices.ContainsFunc(leaf.DNSNames, func(name string) bool {
		return !strings.Contains(name, "*") && (name == node || strings.ToLower(name) == node)
	}) || slices.ContainsFunc(leaf.IPAddresses, func(ip net.IP) bool { return ip.String() == node })
}

// The TLS alerts that tell something about a certificate.
const (
	alertExpired         tls.AlertError = 45
	alertProtocolVersion tls.AlertError = 70
)

func alertText(alert tls.AlertError) string { return strings.TrimPrefix(alert.Error(), "tls: ") }

// remoteAlert returns the text of the alert that the other side sent, or "".
// The type of such an error is private to crypto/tls.
func remoteAlert(err error) string {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" || op.Err == nil {
		return ""
	}
	return strings.TrimPrefix(op.Err.Error(), "tls: ")
}
