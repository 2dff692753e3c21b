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
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mapsync/printable"
)

// Reason is the cause of a failed connection attempt between nodes.
type Reason string

// The reasons, as metrics report them.
const (
	// ReasonPlain: the other side does not use TLS.
	ReasonPlain Reason = "plain"
	// ReasonTLS: the other side uses TLS, but this node is configured without TLS.
	ReasonTLS Reason = "tls"
	// ReasonNoCertificate: the client sent no certificate.
	ReasonNoCertificate Reason = "no_certificate"
	// ReasonUnknownCA: a CA that this node does not trust signed the certificate.
	ReasonUnknownCA Reason = "unknown_ca"
	// ReasonExpired: the certificate has expired.
	ReasonExpired Reason = "expired"
	// ReasonNotYetValid: the certificate is not yet valid.
	ReasonNotYetValid Reason = "not_yet_valid"
	// ReasonWrongName: the certificate belongs to another node.
	ReasonWrongName Reason = "wrong_name"
	// ReasonBadCertificate: the certificate is invalid for another cause.
	ReasonBadCertificate Reason = "bad_certificate"
	// ReasonRevoked: the CA has revoked the certificate.
	ReasonRevoked Reason = "revoked"
	// ReasonNotAllowed: the certificate matches neither AllowedNames nor Observers.
	ReasonNotAllowed Reason = "not_allowed"
	// ReasonRefusedByPeer: the other side refused this node's certificate.
	ReasonRefusedByPeer Reason = "refused_by_peer"
	// ReasonProtocol: the two sides share no TLS version, or the other side does not use gRPC.
	ReasonProtocol Reason = "protocol"
	// ReasonClosed: the connection ended or timed out during the handshake, for example after a port
	// probe.
	ReasonClosed Reason = "closed"
	// ReasonOther: any other cause.
	ReasonOther Reason = "other"
)

// RefusedError is the error for a connection that either side refused.
type RefusedError struct {
	// Reason is the cause as a metric label.
	Reason Reason
	// Remote is the address of the other side.
	Remote string
	// Cause describes the problem and the remedy.
	Cause string
	// Err is the underlying error.
	Err error
}

// Error returns the cause and the other side's address.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("connection with %s refused: %s", e.Remote, e.Cause)
}

// refusalText matches the text of a RefusedError, also as a part of the text of another error.
var refusalText = regexp.MustCompile(`connection with \S+ refused: `)

// IsRefusal reports whether the text of an error contains that of a RefusedError. gRPC keeps only the text.
func IsRefusal(text string) bool { return refusalText.MatchString(text) }

// Unwrap returns the underlying error.
func (e *RefusedError) Unwrap() error { return e.Err }

// handshake is one handshake attempt, with the data that explains its failure.
type handshake struct {
	// own is the TLS state that this node used.
	own *tlsState
	// dialled is the node name that the client requested.
	dialled string
	remote  string
	server  bool
}

// explain converts the error of a handshake into a RefusedError with the cause.
func (h handshake) explain(err error) *RefusedError {
	refused := h.classify(err)
	refused.Cause = printable.Truncated(refused.Cause, maxCause)
	return refused
}

func (h handshake) classify(err error) *RefusedError {
	refused := &RefusedError{Reason: ReasonOther, Remote: h.remote, Cause: err.Error(), Err: err}
	if verification, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		h.explainVerification(refused, verification)
		return refused
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		refused.Reason = ReasonPlain
		refused.Cause = "it does not speak TLS: configure TLS files on that node, or check its address"
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
	classifyText(refused, err)
	return refused
}

// classifyText sets the reason of an error of package tls that has no type of its own.
func classifyText(refused *RefusedError, err error) {
	if text := err.Error(); strings.Contains(text, "didn't provide a certificate") {
		refused.Reason = ReasonNoCertificate
		refused.Cause = "the client sent no certificate: check that it is a node of this cluster"
	} else if strings.Contains(text, "unsupported versions") || strings.Contains(text, "unsupported protocol version") {
		refused.Reason = ReasonProtocol
		refused.Cause = "it does not speak TLS 1.3"
	} else if strings.Contains(text, "ALPN") || strings.Contains(text, "application protocol") {
		refused.Reason = ReasonProtocol
		refused.Cause = "it speaks TLS, but not gRPC: check that this is a node's service address"
	} else if isClosed(err) {
		refused.Reason = ReasonClosed
		refused.Cause = "it closed the connection or timed out during the TLS handshake"
	}
}

// isClosed reports whether err means only that the other side closed the connection.
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

// explainVerification sets the reason and cause for an invalid peer certificate.
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
		refused.Cause = whose + "does not name node " + quoteName(h.dialled) + ", which was dialled: issue each node a certificate with its name as DNS name"
		return
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired && invalid.Cert != nil {
		explainTime(refused, whose, leaf, invalid.Cert)
	}
}

// explainTime describes the certificate of a chain that is not valid now, either the node's or a CA's.
func explainTime(refused *RefusedError, whose string, leaf, invalid *x509.Certificate) {
	renew := "renew it"
	if !invalid.Equal(leaf) {
		whose += "was signed by the CA " + subjectName(invalid) + ", whose certificate "
		renew = "renew the CA's certificate"
	}
	if time.Now().Before(invalid.NotBefore) {
		refused.Reason = ReasonNotYetValid
		refused.Cause = whose + "is not yet valid; it becomes valid at " + formatTime(invalid.NotBefore) + ": check the clocks of both nodes"
		return
	}
	refused.Reason = ReasonExpired
	refused.Cause = whose + "expired at " + formatTime(invalid.NotAfter) + ": " + renew + ", or check this node's clock"
}

// ownFault determines the likely reason why the peer sent alert about this node's certificate. The
// peer sends only the alert, so ownFault checks the certificate for matching problems.
func (h handshake) ownFault(alert string, now time.Time) string {
	leaf := h.own.cert.Leaf
	switch {
	case now.After(leaf.NotAfter):
		return "it expired at " + formatTime(leaf.NotAfter) + ": renew it"
	case now.After(h.own.expiringCert.NotAfter):
		return "the certificate of the CA " + subjectName(h.own.expiringCert) + ", which signed it, expired at " + formatTime(h.own.expiringCert.NotAfter) + ": renew that"
	case now.Before(leaf.NotBefore):
		return "it is not yet valid; it becomes valid at " + formatTime(leaf.NotBefore) + ": check this node's clock"
	case alert == alertText(alertExpired):
		return "it is valid from " + formatTime(leaf.NotBefore) + " to " + formatTime(leaf.NotAfter) + ", so the clocks of the nodes differ"
	case h.server && h.dialled != "" && !namesNode(leaf, h.dialled):
		return "it is for " + nameList(leaf) + ", but this node was dialled as " + quoteName(h.dialled) + ": the certificate does not match the node name"
	}
	return "the peer does not trust the CA that signed it (" + issuerName(leaf) + "), or its allowed-names or its revocation list refuse it: give all nodes the same CA file, and see the peer's log"
}

// formatTime formats a time in UTC for a message.
func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

const (
	// maxCause and maxNameText bound, in bytes, texts that contain data from a side that is not yet
	// authenticated.
	maxCause    = 1 << 10
	maxNameText = 64
	// maxNamesListed is the maximum number of listed names of a certificate.
	maxNamesListed = 4
)

// nameList formats the names in a certificate.
func nameList(leaf *x509.Certificate) string {
	var names []string
	total := len(leaf.DNSNames) + len(leaf.IPAddresses) + len(leaf.URIs)
	for _, name := range leaf.DNSNames[:min(len(leaf.DNSNames), maxNamesListed)] {
		names = append(names, quoteName(name))
	}
	for _, ip := range leaf.IPAddresses[:min(len(leaf.IPAddresses), maxNamesListed-len(names))] {
		names = append(names, ip.String())
	}
	for _, uri := range leaf.URIs[:min(len(leaf.URIs), maxNamesListed-len(names))] {
		names = append(names, quoteText(uri.String()))
	}
	switch {
	case total == 0:
		return "no name"
	case total > len(names):
		names = append(names, fmt.Sprintf("and %d more", total-len(names)))
	}
	return strings.Join(names, ", ")
}

// quoteName quotes a name unless it is a valid node name, because the other side supplies it.
func quoteName(name string) string {
	if CheckNodeName(strings.TrimPrefix(name, "*.")) == nil {
		return name
	}
	return strconv.Quote(printable.Truncated(name, maxNameText))
}

// quoteText quotes a URI or the name of a CA if it is long or contains special characters.
func quoteText(uri string) string {
	if len(uri) <= 2*maxNameText && strconv.Quote(uri) == `"`+uri+`"` {
		return uri
	}
	return strconv.Quote(printable.Truncated(uri, 2*maxNameText))
}

// issuerName and subjectName return CA names of a certificate, quoted if necessary.
func issuerName(cert *x509.Certificate) string  { return quoteText(cert.Issuer.String()) }
func subjectName(cert *x509.Certificate) string { return quoteText(cert.Subject.String()) }

// The TLS alerts about certificates that ownFault distinguishes.
const (
	alertExpired         tls.AlertError = 45
	alertProtocolVersion tls.AlertError = 70
)

func alertText(alert tls.AlertError) string { return strings.TrimPrefix(alert.Error(), "tls: ") }

// remoteAlert returns the text of the alert that the other side sent, or "". The type of such an error
// is private to crypto/tls.
func remoteAlert(err error) string {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" || op.Err == nil {
		return ""
	}
	return strings.TrimPrefix(op.Err.Error(), "tls: ")
}
