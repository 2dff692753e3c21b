// Package testcert creates certificate authorities and node certificates for tests and for the
// failover drill.
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

// lifetime is the default validity of a certificate.
const lifetime = 24 * time.Hour

// lifetimeCA is the validity of a CA certificate.
const lifetimeCA = 365 * 24 * time.Hour

// CA signs node certificates. Its key exists only in memory, and its certificate also in a file.
type CA struct {
	// CertFile is the path of the CA's certificate in PEM.
	CertFile string

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Options override the defaults of a node certificate. By default, it is valid from one hour ago for
// one day, contains the node's name, and permits server and client authentication.
type Options struct {
	// NotBefore and NotAfter bound the validity.
	NotBefore, NotAfter time.Time
	// DNSNames and IPs replace the node's name. A non-nil empty DNSNames creates a certificate without
	// names.
	DNSNames []string
	IPs      []net.IP
	// URIs are added to the names.
	URIs []*url.URL
	// Usages replace server and client authentication.
	Usages []x509.ExtKeyUsage
	// File is the base of the file names. The default is the node's name.
	File string
}

// Pair contains the paths of one node's PEM files. Only the owner can read the key.
type Pair struct {
	CertFile, KeyFile, CAFile string
}

// NewCA creates a CA with its certificate in dir/name.pem. The directory must exist. The caller
// removes it.
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
	return ca, ca.write()
}

// CopyTo returns the same CA with its certificate, and the files that it writes later, in another directory. The directory must
// exist. The caller removes it.
func (ca *CA) CopyTo(dir string) (*CA, error) {
	c := *ca
	c.dir, c.CertFile = dir, filepath.Join(dir, filepath.Base(ca.CertFile))
	return &c, c.write()
}

// write writes the certificate.
func (ca *CA) write() error { return writePEM(ca.CertFile, "CERTIFICATE", ca.cert.Raw, 0o644) }

// Issue creates a key and a certificate for the node and writes them into the directory of the CA's
// files. It replaces each existing file atomically.
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

// newTemplate returns the common fields of all certificates.
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

// writePEM atomically replaces the file.
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
