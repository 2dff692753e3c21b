package peers

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"time"
)

var (
	errRevoked    = errors.New("the certificate is revoked")
	errNotAllowed = errors.New("the certificate matches none of allowed-names and observers")
)

// revocations is one revocation list: the serial numbers that one issuer has revoked.
type revocations struct {
	issuer     []byte // the issuer's subject, as encoded in the certificates that it signs
	signer     *x509.Certificate
	serials    map[string]struct{}
	nextUpdate time.Time // 0: not stated
}

// parseCRLs parses revocation lists in PEM, or a single list in DER. Each list must be complete. One
// of the issuers must have signed it, or a CA whose certificate is in the file and leads to the roots.
func parseCRLs(data []byte, issuers []*x509.Certificate, roots *x509.CertPool, now time.Time) ([]revocations, error) {
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	var ders [][]byte
	for _, block := range blocks {
		switch block.Type {
		case "X509 CRL":
			ders = append(ders, block.Bytes)
		case "CERTIFICATE":
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("parse certificate: %w", err)
			}
			issuers = append(issuers, cert)
		}
	}
	if len(ders) == 0 && len(blocks) == 0 && len(data) > 0 {
		ders = [][]byte{data}
	}
	if len(ders) == 0 {
		return nil, errors.New("no revocation list in it: give the list that the nodes' CA publishes, in PEM or DER")
	}
	var lists []revocations
	for _, der := range ders {
		r, err := parseCRL(der, issuers, roots, now)
		if err != nil {
			return nil, err
		}
		lists = append(lists, r)
	}
	return lists, nil
}

// parseCRL parses a revocation list in DER and checks its signature against the issuers.
func parseCRL(der []byte, issuers []*x509.Certificate, roots *x509.CertPool, now time.Time) (revocations, error) {
	list, err := x509.ParseRevocationList(der)
	if err != nil {
		return revocations{}, fmt.Errorf("parse revocation list: %w", err)
	}
	r := revocations{issuer: list.RawIssuer, nextUpdate: list.NextUpdate, serials: make(map[string]struct{})}
	if r.signer, err = signerOf(list, issuers, roots, now); err != nil {
		return revocations{}, err
	}
	if err := checkComplete(list); err != nil {
		return revocations{}, fmt.Errorf("revocation list of %s: %w", subjectName(r.signer), err)
	}
	for _, entry := range list.RevokedCertificateEntries {
		if entry.SerialNumber != nil {
			r.serials[string(entry.SerialNumber.Bytes())] = struct{}{}
		}
	}
	return r, nil
}

// signerOf returns the issuer that signed a list, if its certificate leads to a root.
func signerOf(list *x509.RevocationList, issuers []*x509.Certificate, roots *x509.CertPool, now time.Time) (*x509.Certificate, error) {
	name := quoteText(list.Issuer.String())
	between, mayNot := x509.NewCertPool(), false
	for _, issuer := range issuers {
		between.AddCert(issuer)
	}
	for _, issuer := range issuers {
		if !bytes.Equal(issuer.RawSubject, list.RawIssuer) ||
			issuer.CheckSignature(list.SignatureAlgorithm, list.RawTBSRevocationList, list.Signature) != nil {
			continue
		}
		if list.CheckSignatureFrom(issuer) != nil {
			mayNot = true // another certificate of the same key may sign lists
			continue
		}
		_, err := issuer.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		if err == nil || isExpired(err) {
			return issuer, nil
		}
	}
	if mayNot {
		return nil, fmt.Errorf("revocation list of %s: the CA's certificate does not allow it to sign lists: issue that with the key usage cRLSign", name)
	}
	return nil, fmt.Errorf("revocation list of %s is not signed by a CA of the CA file: append the certificate of an intermediate CA to the file with its list, "+
		"or remove the list if that CA no longer signs node certificates", name)
}

// isExpired reports whether a certificate fails verification only because of its validity period. The
// list of an expired CA is harmless.
func isExpired(err error) bool {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok && invalid.Reason == x509.Expired
}

// Extensions of revocation lists: RFC 5280, section 5.2.
var (
	deltaIndicator    = asn1.ObjectIdentifier{2, 5, 29, 27}
	distributionPoint = asn1.ObjectIdentifier{2, 5, 29, 28}
)

// issuingPoint is the extension that defines the scope of a list.
type issuingPoint struct {
	Name           asn1.RawValue  `asn1:"optional,tag:0"`
	OnlyUser       bool           `asn1:"optional,tag:1"`
	OnlyCA         bool           `asn1:"optional,tag:2"`
	OnlyReasons    asn1.BitString `asn1:"optional,tag:3"`
	Indirect       bool           `asn1:"optional,tag:4"`
	OnlyAttributes bool           `asn1:"optional,tag:5"`
}

// checkComplete returns an error for a list that does not cover exactly the revoked certificates of
// its issuer.
func checkComplete(list *x509.RevocationList) error {
	for _, e := range list.Extensions {
		switch {
		case e.Id.Equal(deltaIndicator):
			return errors.New("it is a delta list: give the complete one")
		case e.Id.Equal(distributionPoint):
			var p issuingPoint
			if _, err := asn1.Unmarshal(e.Value, &p); err != nil {
				return fmt.Errorf("parse its distribution point: %w", err)
			}
			if p.Indirect || p.OnlyAttributes || p.OnlyReasons.BitLength > 0 {
				return errors.New("it is indirect, or of some reasons only: give the complete list that the CA itself publishes")
			}
		case e.Critical:
			return fmt.Errorf("syncd does not support its critical extension %s: give a list without it", e.Id)
		}
	}
	return nil
}

// revoked reports whether each of the verified chains, leaf first, contains a certificate on a list.
// The last certificate of a chain counts too unless it is self-signed, because the CA file may contain
// an intermediate.
func (m *tlsState) revoked(chains [][]*x509.Certificate) bool {
	return !slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool {
		for i, cert := range chain {
			var signer *x509.Certificate
			switch {
			case i+1 < len(chain):
				signer = chain[i+1]
			case bytes.Equal(cert.RawIssuer, cert.RawSubject):
				continue
			}
			if m.isListed(cert, signer) {
				return false
			}
		}
		return true
	})
}

// isListed reports whether a certificate is on a list of its issuer. The lists of the key that signed
// the certificate count. Without such a list, the lists of the issuer's other keys count: a CA
// with a new key continues its list. Another CA with the same name may use the same serial numbers.
// signer may be nil.
func (m *tlsState) isListed(cert, signer *x509.Certificate) bool {
	ofKey := func(r revocations) bool {
		return signer != nil && bytes.Equal(r.issuer, cert.RawIssuer) && bytes.Equal(r.signer.RawSubjectPublicKeyInfo, signer.RawSubjectPublicKeyInfo)
	}
	all := !slices.ContainsFunc(m.crls, ofKey)
	return slices.ContainsFunc(m.crls, func(r revocations) bool { return (all || ofKey(r)) && r.contains(cert) })
}

func (r *revocations) contains(cert *x509.Certificate) bool {
	_, listed := r.serials[string(cert.SerialNumber.Bytes())]
	return listed && bytes.Equal(r.issuer, cert.RawIssuer)
}
