package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"mapsync/internal/testcert"
)

// newTLS returns a configuration of mutual TLS for each of two nodes, as a client and as a server.
func newTLS(names [2]string) (configs [2]*tls.Config, err error) {
	dir, err := os.MkdirTemp("", "tls")
	if err != nil {
		return configs, fmt.Errorf("create certificates: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ca, err := testcert.NewCA(dir, "ca")
	if err != nil {
		return configs, err
	}
	text, err := os.ReadFile(ca.CertFile)
	if err != nil {
		return configs, fmt.Errorf("read the CA: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	for i, name := range names {
		files, err := ca.Issue(name, testcert.Options{})
		if err != nil {
			return configs, err
		}
		pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
		if err != nil {
			return configs, fmt.Errorf("read the certificate of %s: %w", name, err)
		}
		configs[i] = &tls.Config{
			Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool,
			ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
		}
	}
	return configs, nil
}
