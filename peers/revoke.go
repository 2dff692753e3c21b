package peers

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

var (
	errRevoked    = errors.New("the certificate is revoked")
	errNotAllowed = errors.New("the certificate matches none of allowed-names and observers")
)

// revocations are the serial numbers that one issuer has revoked.
type revocations struct {
	issuer     []byte // its subject, as it stands in the certificates that it signs
	signer     *x509.Certificate
	serials    map[string]struct{}
	nextUpdate time.Time // 0: not said
}

// parseCRLs reads revocation lists in PEM or, a single one, in DER. Each must be
// signed by one of the issuers.
func parseCRLs(data []byte, issuers []*x509.Certificate) ([]revocations, error) {
	var ders [][]byte
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "X509 CRL" {
			ders = append(ders, block.Bytes)
		}
	}
	if len(ders) == 0 {
		ders = [][]byte{data}
	}
	var lists []revocations
	for _, der := range ders {
		list, err := x509.ParseRevocationList(der)
		if err != nil {
			return nil, fmt.Errorf("parse revocation list: %w", err)
		}
		r := revocations{issuer: list.RawIssuer, nextUpdate: list.NextUpdate, serials: make(map[string]struct{})}
		for _, issuer := range issuers {
			if bytes.Equal(issuer.RawSubject, list.RawIssuer) && list.CheckSignatureFrom(issuer) == nil {
				r.signer = issuer
			}
		}
		if r.signer == nil {
			return nil, fmt.Errorf("revocation list of %s is not signed by a CA in the CA file: give the list that the nodes' CA publishes", list.Issuer)
		}
		for _, entry := range list.RevokedCertificateEntries {
			if entry.SerialNumber != nil {
				r.serials[string(entry.SerialNumber.Bytes())] = struct{}{}
			}
		}
		lists = append(lists, r)
	}
	return lists, nil
}

// revoked reports whether a certificate of a verified chain, leaf first, is on a
// list of its issuer.
func (m *material) revoked(chain []*x509.Certificate) bool {
	for i, cert := range chain[:max(len(chain)-1, 0)] {
		for _, r := range m.crls {
			if !bytes.Equal(r.issuer, cert.RawIssuer) || !bytes.Equal(r.signer.RawSubjectPublicKeyInfo, chain[i+1].RawSubjectPublicKeyInfo) {
				continue
			}
			if _, listed := r.serials[string(cert.SerialNumber.Bytes())]; listed {
				return true
			}
		}
	}
	return false
}
