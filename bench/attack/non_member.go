package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"mapsync/internal/testcert"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// Traces of refused streams.
const (
	streamsRefusedTrace = `^mapsync_(tls_refused|connections_rejected|stream_errors)_total|stream refused|not among allowed-names`
	callsRefusedTrace   = streamsRefusedTrace + `|stream to peer ended`
	// Trace of messages that exceed the limits; see expectRefused.
	messagesRefusedTrace = `^mapsync_stream_errors_total\{.*cause="bad_request"`
)

// nonMemberAttacks returns the attacks of a program with a certificate of the cluster's CA that
// belongs to no node of the cluster. The reading attacks use a name that is not in allowed-names.
// The flooding attacks use a name that is in allowed-names and is not a member.
func nonMemberAttacks() []attack {
	return []attack{
		{name: "certificate: observe all maps", by: byNonMember, trace: streamsRefusedTrace, run: observe},
		{name: "certificate: other spellings of names", by: byNonMember, trace: streamsRefusedTrace, run: nameSpellings},
		{name: "certificate: node names in other fields", by: byNonMember, trace: streamsRefusedTrace, run: forgedNames},
		{name: "certificate: streams in a loop", by: byNonMember, trace: callsRefusedTrace, run: streamLoop},
		{name: "certificate: 600 idle streams", by: byNonMember, trace: grpcRefusedTrace, run: idleStreams},
		{name: "certificate: schemas of 64 MiB", by: byNonMember, length: 30 * time.Second, trace: messagesRefusedTrace, run: largeSchemas},
		{name: "certificate: 500,000 requests on a stream", by: byNonMember, trace: callsRefusedTrace, run: requestFlood},
		{name: "certificate: HTTP/2 settings and pings", by: byNonMember, run: frameFlood(settingsFrames)},
		{name: "certificate: HTTP/2 rapid reset", by: byNonMember, run: frameFlood(resetFrames)},
		{name: "certificate: HTTP/2 endless headers", by: byNonMember, run: frameFlood(headerFrames)},
		{name: "certificate: HTTP/2 oversized frames", by: byNonMember, run: frameFlood(largeFrames)},
	}
}

// tlsConfig returns the configuration of a client with a certificate of the CA, issued with the
// options.
func (c *cluster) tlsConfig(name string, o testcert.Options) (*tls.Config, error) {
	pair, err := c.ca.Issue(name, o)
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("load certificate of %s: %w", name, err)
	}
	// The client skips verification: the attacks do not depend on which daemon answers.
	return &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, NextProtos: []string{"h2"}}, nil
}

// connect makes a gRPC connection to a daemon, from an attacker's address. The daemon may be as slow to accept it as to answer an
// operator.
func (c *cluster) connect(n *node, conf *tls.Config, from int) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+n.addr+":"+grpcPort,
		grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return c.dialWithin(ctx, n, grpcPort, from, answerLimit)
		}))
}

// attackStream is a stream on which an attacker sends requests.
type attackStream struct {
	mapsyncv1.ReplicationService_SubscribeClient
	conn *grpc.ClientConn
}

func (s *attackStream) close() { _ = s.conn.Close() }

// subscribe opens a stream to a daemon as a node of the given name, at the address of mallory.
func (c *cluster) subscribe(ctx context.Context, n *node, conf *tls.Config, name string, incarnation uint64) (*attackStream, error) {
	return c.subscribeAt(ctx, n, conf, &mapsyncv1.Incarnation{Node: name, Number: incarnation}, c.address(attackers-1))
}

// subscribeAt opens a stream to a daemon as a node that listens at an address.
func (c *cluster) subscribeAt(ctx context.Context, n *node, conf *tls.Config, self *mapsyncv1.Incarnation, host string) (*attackStream, error) {
	conn, err := c.connect(n, conf, 0)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", n.name, err)
	}
	stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(ctx)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("subscribe to %s: %w", n.name, err)
	}
	s := &attackStream{stream, conn}
	_ = s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Hello{Hello: &mapsyncv1.Hello{
		ProtocolVersion: 2, Self: self, Address: host + ":" + grpcPort,
	}}}) // Recv returns the reason if the stream has ended
	return s, nil
}

// subscribeMap subscribes to a map.
func (s *attackStream) subscribeMap(m *mapsyncv1.MapSubscription) {
	_ = s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: m}})
}

// countRecords counts the records that arrive before the context or the stream ends.
func (s *attackStream) countRecords() (n int) {
	for {
		m, err := s.Recv()
		if err != nil {
			return n
		}
		n += len(m.GetBatch().GetDeltas())
	}
}

// replicaSubscription returns the subscription that a replica sends.
func replicaSubscription(index uint32) *mapsyncv1.MapSubscription {
	return &mapsyncv1.MapSubscription{
		Map: index, Name: mapName, Layout: &mapsyncv1.Layout{KeySize: keySize, ValueSize: valueSize, Type: mapsyncv1.MapType_MAP_TYPE_HASH},
		Schema: wireSchema(), SendAll: true,
	}
}

// errLeaked is returned if an attacker received records.
var errLeaked = errors.New("records were sent to an attacker")

// readAs subscribes as a node of the given name and returns an error if it receives records.
func (c *cluster) readAs(ctx context.Context, conf *tls.Config, name string, m *mapsyncv1.MapSubscription) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, n := range c.nodes[:2] {
		s, err := c.subscribe(ctx, n, conf, name, uint64(time.Now().UnixNano()))
		if err != nil {
			continue // refused, as expected
		}
		s.subscribeMap(m)
		got := s.countRecords()
		s.close()
		if got > 0 {
			return fmt.Errorf("%w: %d of %s as %q", errLeaked, got, n.name, name)
		}
	}
	return nil
}

func observe(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(notAllowedName, testcert.Options{})
	if err != nil {
		return err
	}
	return c.readAs(ctx, conf, notAllowedName, &mapsyncv1.MapSubscription{Map: 1, Name: mapName, Observe: true})
}

// nameSpellings tries names that a careless comparison accepts as the attacker's own name or as a
// node's name.
func nameSpellings(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(notAllowedName, testcert.Options{})
	if err != nil {
		return err
	}
	for _, name := range []string{notAllowedName, strings.ToUpper(notAllowedName), notAllowedName + ".", "lb2", "LB2", "lb2.", "lb*", "*", "", "lb2\x00", strings.Repeat("a", 300)} {
		if err := c.readAs(ctx, conf, name, replicaSubscription(1)); err != nil {
			return err
		}
	}
	return nil
}

// forgedNames tries certificates that have a node's name in a field that does not authenticate it.
func forgedNames(ctx context.Context, c *cluster) error {
	for i, o := range []testcert.Options{
		{DNSNames: []string{}},                        // in the subject only
		{DNSNames: []string{"lb2.example"}},           // as part of a longer name
		{DNSNames: []string{"*"}},                     // as a wildcard
		{IPs: []net.IP{net.ParseIP(c.nodes[1].addr)}}, // by the node's address
	} {
		o.File = fmt.Sprint("forged", i)
		conf, err := c.tlsConfig("lb2", o)
		if err != nil {
			return err
		}
		if err := c.readAs(ctx, conf, "lb2", replicaSubscription(1)); err != nil {
			return err
		}
	}
	return nil
}

// streamLoop opens streams one after another and sends a hello on each.
func streamLoop(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(unusedName, testcert.Options{})
	if err != nil {
		return err
	}
	for i := 0; i < 2000 && ctx.Err() == nil; i++ {
		s, err := c.subscribe(ctx, c.nodes[i%3], conf, unusedName, uint64(i+1))
		if err != nil {
			continue // refused, as expected
		}
		s.subscribeMap(replicaSubscription(1))
		if i%2 == 0 {
			_, _ = s.Recv()
		}
		s.close()
	}
	return nil
}

// idleStreams opens connections and streams, sends a hello on half of them, and keeps them open.
func idleStreams(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(unusedName, testcert.Options{})
	if err != nil {
		return err
	}
	for i := range 600 {
		conn, err := c.connect(c.nodes[0], conf, i%32)
		if err != nil {
			continue
		}
		defer conn.Close()
		stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(ctx)
		if err == nil && i%2 == 0 {
			_ = stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Hello{Hello: &mapsyncv1.Hello{
				ProtocolVersion: 2, Self: &mapsyncv1.Incarnation{Node: unusedName, Number: uint64(i + 1)},
			}}})
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

// largeSchemas subscribes with schemas that are far larger than the schema of any map.
func largeSchemas(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(unusedName, testcert.Options{})
	if err != nil {
		return err
	}
	huge := replicaSubscription(1)
	huge.Schema.Key.Name = strings.Repeat("a", 64<<20)
	wide := replicaSubscription(1)
	for i := range 200_000 {
		wide.Schema.Key.Fields = append(wide.Schema.Key.Fields, &mapsyncv1.Field{Name: fmt.Sprint("f", i), Number: uint32(i + 1)})
	}
	deep := replicaSubscription(1)
	for range 5000 {
		inner := deep.Schema.Key
		deep.Schema.Key = &mapsyncv1.MessageType{Fields: []*mapsyncv1.Field{{Name: "a", Number: 1, Message: inner}}}
	}
	for _, m := range []*mapsyncv1.MapSubscription{huge, wide, deep, huge, wide, deep} {
		for _, n := range c.nodes[:2] {
			if err := c.expectRefused(ctx, n, conf, m); err != nil {
				return fmt.Errorf("schema of %d bytes to %s: %w", proto.Size(m), n.name, err)
			}
		}
	}
	return nil
}

// expectRefused returns an error unless a daemon refuses a subscription or ends its stream because
// of the request.
func (c *cluster) expectRefused(ctx context.Context, n *node, conf *tls.Config, m *mapsyncv1.MapSubscription) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s, err := c.subscribe(ctx, n, conf, unusedName, uint64(time.Now().UnixNano()))
	if err != nil {
		return err
	}
	defer s.close()
	s.subscribeMap(m)
	for {
		answer, err := s.Recv()
		switch {
		case status.Code(err) == codes.ResourceExhausted, status.Code(err) == codes.Internal:
			return nil // larger or more deeply nested than a request may be
		case err != nil:
			return fmt.Errorf("the stream ended for another reason: %w", err)
		case len(answer.GetBatch().GetDeltas()) > 0:
			return errLeaked
		case answer.GetRefused() != nil:
			return nil
		}
	}
}

// requestFlood sends requests without reading the answers.
func requestFlood(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(unusedName, testcert.Options{})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		s, err := c.subscribe(ctx, c.nodes[0], conf, unusedName, 1)
		if err != nil {
			return nil // refused, as expected
		}
		s.subscribeMap(replicaSubscription(1))
		for i := 0; i < 500_000 && err == nil; i++ {
			err = s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_ClockProbe{ClockProbe: &mapsyncv1.ClockProbe{Sent: uint64(i)}}})
		}
		if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
			sleep(ctx, 50*time.Millisecond)
		}
		s.close()
	}
	return nil
}
