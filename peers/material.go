package peers

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"
)

// fileStamp tells one state of a file from another, most of the time.
type fileStamp struct {
	mtime time.Time
	size  int64
	inode uint64
	mode  fs.FileMode
}

// The files of a material. The last is optional.
const (
	fileCert = iota
	fileKey
	fileCA
	fileCRL
	tlsFileCount
)

// tlsFiles are the contents of the files.
type tlsFiles [tlsFileCount][]byte

// fileStamps are the states of the files.
type fileStamps [tlsFileCount]fileStamp

// material is what a handshake needs: one state of the files.
type material struct {
	cert   tls.Certificate
	roots  *x509.CertPool
	crls   []revocations
	files  tlsFiles
	stamps fileStamps
}

// paths returns the files, the last one empty if there is none.
func (o CredentialsOptions) paths() [tlsFileCount]string {
	return [tlsFileCount]string{o.CertFile, o.KeyFile, o.CAFile, o.CRLFile}
}

// stampFiles looks at the files without reading them. A missing file has the
// zero stamp.
func (o CredentialsOptions) stampFiles() (stamps fileStamps) {
	for i, path := range o.paths() {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		stamps[i] = fileStamp{mtime: info.ModTime(), size: info.Size(), mode: info.Mode()}
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			stamps[i].inode = sys.Ino
		}
	}
	return stamps
}

// loadMaterial reads and checks the files. The stamps are older than the
// contents, so that a change in between is found by the next look.
func (o CredentialsOptions) loadMaterial(now time.Time) (*material, error) {
	m := &material{stamps: o.stampFiles()}
	for i, path := range o.paths() {
		if path == "" {
			continue
		}
		var err error
		if m.files[i], err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("read TLS file: %w", err)
		}
	}
	if mode := m.stamps[fileKey].mode; mode&0o022 != 0 {
		return nil, fmt.Errorf("key file %s can be written by others (mode %04o): chmod 600 it", o.KeyFile, mode.Perm())
	}
	authorities, err := parseCAs(m.files[fileCA])
	if err != nil {
		return nil, fmt.Errorf("CA file %s: %w", o.CAFile, err)
	}
	m.roots = x509.NewCertPool()
	for _, ca := range authorities {
		m.roots.AddCert(ca)
	}
	if m.cert, err = o.parsePair(m.files[fileCert], m.files[fileKey]); err != nil {
		return nil, err
	}
	if o.CRLFile != "" {
		if m.crls, err = parseCRLs(m.files[fileCRL], append(authorities, intermediatesOf(m.cert)...)); err != nil {
			return nil, fmt.Errorf("CRL file %s: %w", o.CRLFile, err)
		}
	}
	if err := o.checkLeaf(m, now); err != nil {
		return nil, fmt.Errorf("certificate %s: %w", o.CertFile, err)
	}
	return m, nil
}

// parsePair parses certificate and key, telling apart what can be wrong.
func (o CredentialsOptions) parsePair(cert, key []byte) (tls.Certificate, error) {
	if block, _ := pem.Decode(cert); block == nil {
		return tls.Certificate{}, fmt.Errorf("certificate file %s holds no PEM block", o.CertFile)
	}
	if block, _ := pem.Decode(key); block == nil {
		return tls.Certificate{}, fmt.Errorf("key file %s holds no PEM block", o.KeyFile)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err == nil {
		return pair, nil
	}
	if strings.Contains(err.Error(), "does not match public key") {
		return tls.Certificate{}, fmt.Errorf("key file %s does not belong to certificate %s: install both files of one issue: %w", o.KeyFile, o.CertFile, err)
	}
	return tls.Certificate{}, fmt.Errorf("parse certificate %s and key %s: %w", o.CertFile, o.KeyFile, err)
}

// parseCAs parses the CA file. A certificate that is no CA is left out, for with
// it this node would verify its own certificate and nobody else's.
func parseCAs(data []byte) (found []*x509.Certificate, err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse certificate: %w", err)
		}
		if !cert.IsCA && (cert.Version == 3 || cert.BasicConstraintsValid) {
			continue
		}
		found = append(found, cert)
	}
	if len(found) == 0 {
		return nil, errors.New("no CA certificate in it: give the certificate of the CA that signs the nodes' certificates, in PEM")
	}
	return found, nil
}

// intermediatesOf returns the CA certificates that stand behind a node's own.
func intermediatesOf(pair tls.Certificate) (found []*x509.Certificate) {
	for _, der := range pair.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil && cert.IsCA {
			found = append(found, cert)
		}
	}
	return found
}

// checkLeaf verifies this node's certificate as its peers will, so that what
// they would refuse is known here first.
func (o CredentialsOptions) checkLeaf(m *material, now time.Time) error {
	leaf := m.cert.Leaf
	if now.Before(leaf.NotBefore) {
		return fmt.Errorf("it is not yet valid, but from %s: check this node's clock, or issue it anew", stamp(leaf.NotBefore))
	}
	if now.After(leaf.NotAfter) {
		return fmt.Errorf("it expired at %s: renew it", stamp(leaf.NotAfter))
	}
	if !namesNode(leaf, o.NodeName) {
		return fmt.Errorf("it is for %s, but this node's name is %s: issue it with that DNS name (subject alternative name), or set the node name", nameList(leaf), o.NodeName)
	}
	intermediates := x509.NewCertPool()
	for _, der := range m.cert.Certificate[1:] {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("parse intermediate certificate: %w", err)
		}
		intermediates.AddCert(cert)
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: m.roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use},
		})
		if err != nil {
			return o.explainChain(leaf, err)
		}
	}
	return nil
}

// explainChain says what to do about a chain that does not verify.
func (o CredentialsOptions) explainChain(leaf *x509.Certificate, err error) error {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Errorf("it was not signed by a CA in %s, but by %s: use the CA file of its issuer, and append intermediate certificates to the certificate file: %w",
			o.CAFile, leaf.Issuer, err)
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.IncompatibleUsage {
		return fmt.Errorf("its extended key usage must allow both server and client authentication, as each node is both: %w", err)
	}
	return fmt.Errorf("its chain to the CA does not verify: %w", err)
}

// same reports whether both hold the same contents.
func (m *material) same(other *material) bool {
	for i := range m.files {
		if !bytes.Equal(m.files[i], other.files[i]) {
			return false
		}
	}
	return true
}

// settled reports whether the stamps tell all changes: a file that is rewritten
// in place within the resolution of its time stamp keeps its stamp, so one that
// is this young is read again.
func settled(stamps fileStamps, now time.Time) bool {
	for _, s := range stamps {
		if now.Sub(s.mtime) < 2*time.Second {
			return false
		}
	}
	return true
}
