package feed

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"mapsync/docs/examples/bundling/trace"
)

// outgoing is the direction of a node that has the client: see bpf/flow.h.
const outgoing = 1

// table adds up the records of each owner.
func (r *records) table(now time.Time) trace.Table {
	t := trace.Table{Time: now, Flows: len(r.flows), Owners: make(map[string]trace.Sums)}
	for _, record := range r.flows {
		s := t.Owners[record.owner]
		c := &s.Incoming
		if record.direction == outgoing {
			c = &s.Outgoing
		}
		c.Connections += record.value.GetConnections()
		c.Messages += record.value.GetMessages()
		c.Sent += record.value.GetSent()
		c.Received += record.value.GetReceived()
		t.Owners[record.owner] = s
	}
	return t
}

func secure(o *options) (credentials.TransportCredentials, error) {
	if o.cert == "" {
		return insecure.NewCredentials(), nil
	}
	pair, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	ca, err := os.ReadFile(o.ca)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read CA: %s has no certificate", o.ca)
	}
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: o.node, MinVersion: tls.VersionTLS13,
	}), nil
}
