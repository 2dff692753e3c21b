package peers

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// fileStamp identifies one state of a file. Two states rarely have the same stamp; see stampsReliable.
type fileStamp struct {
	mtime time.Time
	size  int64
	inode uint64
	mode  fs.FileMode
}

// Indices of the files in tlsFiles. The last file is optional.
const (
	fileCert = iota
	fileKey
	fileCA
	fileCRL
	tlsFileCount
)

// tlsFiles holds the contents of the files.
type tlsFiles [tlsFileCount][]byte

// fileStamps holds the stamps of the files.
type fileStamps [tlsFileCount]fileStamp

// tlsState holds the parsed TLS files of one point in time. It provides all data that a handshake
// needs.
type tlsState struct {
	cert  tls.Certificate
	roots *x509.CertPool
	crls  []revocations
	// chains lead from this node's certificate to its CAs. expiringCert is the certificate after whose
	// expiry none of the chains is valid.
	chains       [][]*x509.Certificate
	expiringCert *x509.Certificate
	files        tlsFiles
	stamps       fileStamps
}

// paths returns the file paths. The last one is empty if no revocation list is configured.
func (o CredentialsOptions) paths() [tlsFileCount]string {
	return [tlsFileCount]string{o.CertFile, o.KeyFile, o.CAFile, o.CRLFile}
}

// stampFiles returns the stamps of the files without reading them. A missing file has the zero stamp.
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

// loadTLSState reads and validates the files. It takes the stamps before it reads the contents, so the
// next check detects a change in between.
func (o CredentialsOptions) loadTLSState(now time.Time) (*tlsState, error) {
	m := &tlsState{stamps: o.stampFiles()}
	for i, path := range o.paths() {
		if path == "" {
			continue
		}
		var err error
		if m.files[i], err = readFile(path); err != nil {
			return nil, fmt.Errorf("read TLS file: %w", err)
		}
		writable := fs.FileMode(0o002)
		if i == fileKey {
			writable = 0o022
		}
		if mode := m.stamps[i].mode; mode&writable != 0 {
			return nil, fmt.Errorf("TLS file %s can be written by others (mode %04o): chmod go-w it", path, mode.Perm())
		}
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
		if m.crls, err = parseCRLs(m.files[fileCRL], append(authorities, intermediatesOf(m.cert)...), m.roots, now); err != nil {
			return nil, fmt.Errorf("CRL file %s: %w", o.CRLFile, err)
		}
	}
	if err := o.checkLeaf(m, now); err != nil {
		return nil, fmt.Errorf("certificate %s: %w", o.CertFile, err)
	}
	return m, nil
}

// maxTLSFile bounds the size of a file in bytes. A revocation list of 300,000 certificates has 12 MB.
const maxTLSFile = 16 << 20

// readFile reads a regular file of at most maxTLSFile bytes. It does not block on other file types,
// such as a pipe.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file (%s)", path, info.Mode())
	case info.Size() > maxTLSFile:
		return nil, fmt.Errorf("%s has %d bytes, at most %d are allowed", path, info.Size(), maxTLSFile)
	}
	return io.ReadAll(io.LimitReader(f, maxTLSFile))
}

var pemBegin, pemEnd = []byte("-----BEGIN "), []byte("-----END ")

// pemBlocks returns all PEM blocks of a file. It returns an error if one of them cannot be decoded.
// The standard decoder skips truncated or damaged blocks, so the certificates or revocations in them
// would be missing. Lines that begin with # are comments.
func pemBlocks(data []byte) (blocks []*pem.Block, err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, block)
	}
	begun, ended := 0, 0
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			begun += bytes.Count(line, pemBegin)
			ended += bytes.Count(line, pemEnd)
		}
	}
	if begun != len(blocks) || ended != len(blocks) {
		return nil, fmt.Errorf("%d PEM blocks, %d decoded: install the whole file again, with each BEGIN and END at the start of a line, "+
			"and comments with these words marked by #", max(begun, ended), len(blocks))
	}
	return blocks, nil
}

// parsePair parses the certificate and the key. Its errors distinguish the possible causes.
func (o CredentialsOptions) parsePair(cert, key []byte) (tls.Certificate, error) {
	for _, file := range []struct {
		what, path string
		data       []byte
	}{{"certificate", o.CertFile, cert}, {"key", o.KeyFile, key}} {
		blocks, err := pemBlocks(file.data)
		if err == nil && len(blocks) == 0 {
			err = errors.New("it holds no PEM block")
		}
		if err != nil {
			return tls.Certificate{}, fmt.Errorf("%s file %s: %w", file.what, file.path, err)
		}
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

// parseCAs parses the CA file. It skips certificates that are not CAs. With such a certificate, this
// node could verify its own certificate but no peer's.
func parseCAs(data []byte) (found []*x509.Certificate, err error) {
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	for _, block := range blocks {
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

// intermediatesOf returns the CA certificates that follow a node's own certificate.
func intermediatesOf(pair tls.Certificate) (found []*x509.Certificate) {
	for _, der := range pair.Certificate[1:] {
		if cert, err := x509.ParseCertificate(der); err == nil && cert.IsCA {
			found = append(found, cert)
		}
	}
	return found
}

// checkLeaf verifies this node's certificate as its peers do, so this node reports problems before a
// peer refuses it.
func (o CredentialsOptions) checkLeaf(m *tlsState, now time.Time) error {
	leaf := m.cert.Leaf
	if err := checkValidity(leaf, now); err != nil {
		return err
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
		chains, err := leaf.Verify(x509.VerifyOptions{
			Roots: m.roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use},
		})
		if err != nil {
			return o.explainChain(leaf, err)
		}
		m.chains = chains
	}
	for _, chain := range m.chains {
		if first := earliestExpiry(chain); m.expiringCert == nil || first.NotAfter.After(m.expiringCert.NotAfter) {
			m.expiringCert = first
		}
	}
	return nil
}

// checkValidity returns an error if a certificate is not valid at the time now.
func checkValidity(leaf *x509.Certificate, now time.Time) error {
	if now.Before(leaf.NotBefore) {
		return fmt.Errorf("it is not yet valid; it becomes valid at %s: check this node's clock, or reissue it", formatTime(leaf.NotBefore))
	}
	if now.After(leaf.NotAfter) {
		return fmt.Errorf("it expired at %s: renew it", formatTime(leaf.NotAfter))
	}
	return nil
}

// earliestExpiry returns the certificate of a chain that expires first.
func earliestExpiry(chain []*x509.Certificate) *x509.Certificate {
	return slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
}

// explainChain adds the remedy to the verification error of a chain.
func (o CredentialsOptions) explainChain(leaf *x509.Certificate, err error) error {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Errorf("it was not signed by a CA in %s, but by %s: use the CA file of its issuer, and append intermediate certificates to the certificate file: %w",
			o.CAFile, issuerName(leaf), err)
	}
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case ok && invalid.Reason == x509.IncompatibleUsage:
		return fmt.Errorf("its extended key usage must allow both server and client authentication, as each node is both: %w", err)
	case ok && invalid.Reason == x509.Expired && invalid.Cert != nil: // the error's own text contains the time of the check
		return fmt.Errorf("the CA %s in its chain is valid from %s to %s: renew the CA's certificate, or check this node's clock",
			subjectName(invalid.Cert), formatTime(invalid.Cert.NotBefore), formatTime(invalid.Cert.NotAfter))
	}
	return fmt.Errorf("its chain to the CA does not verify: %w", err)
}

// equalFiles reports whether both states hold the same file contents.
func (m *tlsState) equalFiles(other *tlsState) bool {
	for i := range m.files {
		if !bytes.Equal(m.files[i], other.files[i]) {
			return false
		}
	}
	return true
}

// stampsReliable reports whether the stamps reveal all changes. A file that is rewritten in place
// within the resolution of its time stamp keeps its stamp. Therefore a file with a recent stamp is
// reread. A time stamp more than 2 s in the future counts as reliable, because no imminent write
// gets it.
func stampsReliable(stamps fileStamps, now time.Time) bool {
	for _, s := range stamps {
		if now.Sub(s.mtime).Abs() < 2*time.Second {
			return false
		}
	}
	return true
}
