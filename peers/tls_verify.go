package peers

import (
	"crypto/tls"
	"crypto/x509"
	"errors"

	"google.golang.org/grpc/credentials"
)

// clientConfig returns the TLS configuration for dialling node.
func (m *tlsState) clientConfig(o *CredentialsOptions, node string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: node,
		RootCAs:    m.roots,
		// With Certificates, crypto/tls would omit this node's certificate if the server's CA did not
		// issue it. The server could then not report the cause.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &m.cert, nil },
		// A wildcard passes the standard verification but identifies no node.
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf := state.PeerCertificates[0]
			if namesNode(leaf, node) {
				return m.verifyPermit(o, state, true)
			}
			return &tls.CertificateVerificationError{
				UnverifiedCertificates: state.PeerCertificates,
				Err:                    x509.HostnameError{Certificate: leaf, Host: node},
			}
		},
	}
}

// serverConfig returns the TLS configuration for one incoming connection. It stores the name that the
// client requests in dialled.
func (m *tlsState) serverConfig(o *CredentialsOptions, dialled *string) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{m.cert},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    m.roots,
		// A resumed TLS session could outlive the certificate.
		SessionTicketsDisabled: true,
		VerifyConnection:       func(state tls.ConnectionState) error { return m.verifyPermit(o, state, false) },
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			*dialled = hello.ServerName
			return nil, nil
		},
	}
}

// verifyPermit returns an error if the verified certificate of a connection is revoked or not allowed.
func (m *tlsState) verifyPermit(o *CredentialsOptions, state tls.ConnectionState, dialled bool) error {
	if err := m.permit(o, state.VerifiedChains, dialled); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	return nil
}

// verified returns the result of a handshake that used m.
func (m *tlsState) verified(info credentials.AuthInfo) (authInfo, error) {
	tlsInfo, ok := info.(credentials.TLSInfo)
	if !ok || len(tlsInfo.State.VerifiedChains) == 0 {
		return authInfo{}, errors.New("verify peer: the handshake verified no certificate")
	}
	until := latestExpiry(tlsInfo.State.VerifiedChains)
	if m.expiringCert.NotAfter.Before(until) {
		until = m.expiringCert.NotAfter
	}
	return authInfo{tlsInfo, until}, nil
}
