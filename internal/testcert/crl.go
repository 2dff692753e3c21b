package testcert

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// Revoke writes a revocation list with the certificates of the pairs into the directory of the CA's
// files. It returns the path of the list. It atomically replaces an earlier list.
func (ca *CA) Revoke(pairs ...Pair) (path string, err error) {
	return ca.RevokeUntil(time.Now().Add(lifetime), pairs...)
}

// RevokeUntil is Revoke for a list that becomes outdated at next.
func (ca *CA) RevokeUntil(next time.Time, pairs ...Pair) (path string, err error) {
	now := time.Now()
	template := &x509.RevocationList{Number: big.NewInt(now.UnixNano()), ThisUpdate: now.Add(-time.Hour), NextUpdate: next}
	for _, pair := range pairs {
		text, err := os.ReadFile(pair.CertFile)
		if err != nil {
			return "", fmt.Errorf("read certificate: %w", err)
		}
		block, _ := pem.Decode(text)
		if block == nil {
			return "", fmt.Errorf("read certificate %s: no PEM block", pair.CertFile)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return "", fmt.Errorf("parse certificate: %w", err)
		}
		template.RevokedCertificateEntries = append(template.RevokedCertificateEntries,
			x509.RevocationListEntry{SerialNumber: cert.SerialNumber, RevocationTime: now})
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, ca.cert, ca.key)
	if err != nil {
		return "", fmt.Errorf("sign revocation list: %w", err)
	}
	path = filepath.Join(ca.dir, "crl.pem")
	return path, writePEM(path, "X509 CRL", der, 0o644)
}
