// Package testcert makes certificate authorities and node certificates for
// tests and for the failover drill.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// lifetime is how long a certificate is valid unless its Options say otherwise.
const lifetime = 24 * time.Hour

// lifetimeCA is how long that of a CA is.
const lifetimeCA = 365 * 24 * time.Hour

// CA signs node certificates. It lives in memory and in its certificate file.
type CA struct {
	// CertFile is the CA's certificate in PEM.
	CertFile string

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Options change a node certificate from one that is valid from an hour ago for
// a day, for the node's name, as server and client.
type Options struct {
	// NotBefore and NotAfter bound the validity.
	NotBefore, NotAfter time.Time
	// DNSNames and IPs replace the node's name. A certificate without any name
	// is had by setting DNSNames to an empty slice that is not nil.
	DNSNames []string
	IPs      []net.IP
	// URIs are added to the names.
	URIs []*url.URL
	// Usages replace server and client authentication.
	Usages []x509.ExtKeyUsage
	// File is the base of the file names, instead of the node's name.
	File string
}

// Pair names the files of one node, in PEM. The key is readable by its owner
// alone.
type Pair struct {
	CertFile, KeyFile, CAFile string
}

// NewCA makes a CA with its certificate in dir/name.pem. The directory must
// exist; who made it removes it.
func NewCA(dir, name string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	template, err := newTemplate(name)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.NotAfter = time.Now().Add(lifetimeCA)
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse CA certificate: %w", err)
	}
	ca := &CA{CertFile: filepath.Join(dir, name+".pem"), dir: dir, cert: cert, key: key}
	if err := writePEM(ca.CertFile, "CERTIFICATE", der, 0o644); err != nil {
		return nil, err
	}
	return ca, nil
}

// Issue makes a key and a certificate for the node and writes them beside the
// CA's. Files of an earlier issue are replaced, each in one step.
func (ca *CA) Issue(node string, opts Options) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make key of %s: %w", node, err)
	}
	template, err := newTemplate(node)
	if err != nil {
		return Pair{}, err
	}
	opts.apply(template, node)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign certificate of %s: %w", node, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode key of %s: %w", node, err)
	}
	base := opts.File
	if base == "" {
		base = node
	}
	pair := Pair{
		CertFile: filepath.Join(ca.dir, base+".cert.pem"),
		KeyFile:  filepath.Join(ca.dir, base+".key.pem"),
		CAFile:   ca.CertFile,
	}
	if err := writePEM(pair.KeyFile, "PRIVATE KEY", keyDER, 0o600); err != nil {
		return Pair{}, err
	}
	return pair, writePEM(pair.CertFile, "CERTIFICATE", der, 0o644)
}

// apply overrides the defaults of a node's certificate.
func (o Options) apply(template *x509.Certificate, node string) {
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.DNSNames, template.IPAddresses, template.URIs = o.DNSNames, o.IPs, o.URIs
	if o.DNSNames == nil && o.IPs == nil {
		template.DNSNames = []string{node}
	}
	template.ExtKeyUsage = o.Usages
	if o.Usages == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	if !o.NotBefore.IsZero() {
		template.NotBefore = o.NotBefore
	}
	if !o.NotAfter.IsZero() {
		template.NotAfter = o.NotAfter
	}
}

// newTemplate returns what all certificates have in common.
func newTemplate(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("draw serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: []string{"mapsync test"}},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(lifetime),
	}, nil
}

// writePEM replaces the file in one step.
func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		return fmt.Errorf("write %s: %w", kind, err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	return nil
}
