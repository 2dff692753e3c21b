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
	refusedStreams = `^mapsync_(tls_refused|connections_rejected|stream_errors)_total|stream refused|not among allowed-names`
	refusedCalls   = refusedStreams + `|stream to peer ended`
	// Of messages that break the limits; see refuses.
	refusedMessages = `^mapsync_stream_errors_total\{.*cause="bad_request"`
)

// strangerAttacks are those of a program with a certificate of the cluster's CA that is for
// no node of the cluster. Those that read have a name that is not among allowed-names; those
// that flood have one that is, and is not a member.
func strangerAttacks() []attack {
	return []attack{
		{name: "certificate: observe all maps", by: byStranger, trace: refusedStreams, run: observe},
		{name: "certificate: other spellings of names", by: byStranger, trace: refusedStreams, run: spellings},
		{name: "certificate: node names in other fields", by: byStranger, trace: refusedStreams, run: forgedNames},
		{name: "certificate: streams in a loop", by: byStranger, trace: refusedCalls, run: streamLoop},
		{name: "certificate: 600 streams held for ever", by: byStranger, trace: grpcRefusals, run: heldStreams},
		{name: "certificate: schemas of 64 MiB", by: byStranger, fixed: 5 * time.Second, trace: refusedMessages, run: largeSchemas},
		{name: "certificate: 500,000 requests on a stream", by: byStranger, trace: refusedCalls, run: requestFlood},
		{name: "certificate: HTTP/2 settings and pings", by: byStranger, run: frameFlood(settingsFrames)},
		{name: "certificate: HTTP/2 rapid reset", by: byStranger, run: frameFlood(resetFrames)},
		{name: "certificate: HTTP/2 endless headers", by: byStranger, run: frameFlood(headerFrames)},
		{name: "certificate: HTTP/2 oversized frames", by: byStranger, run: frameFlood(largeFrames)},
	}
}

// tlsConfig returns that of a client with a certificate of the CA, issued with the options.
func (c *cluster) tlsConfig(name string, o testcert.Options) (*tls.Config, error) {
	pair, err := c.ca.Issue(name, o)
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("load certificate of %s: %w", name, err)
	}
	// The daemons are the ones under attack: which of them answers does not matter.
	return &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, NextProtos: []string{"h2"}}, nil
}

// connect makes a gRPC connection to a daemon, from an attacker's address.
func (c *cluster) connect(n *node, conf *tls.Config, from int) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+n.addr+":"+grpcPort,
		grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.dial(ctx, n, grpcPort, from) }))
}

// subscriber is a stream on which an attacker sends requests.
type subscriber struct {
	mapsyncv1.ReplicationService_SubscribeClient
	conn *grpc.ClientConn
}

func (s *subscriber) close() { _ = s.conn.Close() }

// subscribe opens a stream to a daemon as a node of the given name.
func (c *cluster) subscribe(ctx context.Context, n *node, conf *tls.Config, name string, incarnation uint64) (*subscriber, error) {
	conn, err := c.connect(n, conf, 0)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", n.name, err)
	}
	stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(ctx)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("subscribe to %s: %w", n.name, err)
	}
	s := &subscriber{stream, conn}
	_ = s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Hello{Hello: &mapsyncv1.Hello{
		ProtocolVersion: 1, Self: &mapsyncv1.Incarnation{Node: name, Number: incarnation}, Address: c.address(attackers-1) + ":" + grpcPort,
	}}}) // Recv has the reason when the stream has ended
	return s, nil
}

// ask subscribes to a map.
func (s *subscriber) ask(m *mapsyncv1.MapSubscription) {
	_ = s.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: m}})
}

// records counts those that arrive before the context or the stream ends.
func (s *subscriber) records() (n int) {
	for {
		m, err := s.Recv()
		if err != nil {
			return n
		}
		n += len(m.GetBatch().GetDeltas())
	}
}

// replica is a subscription as a replica makes it.
func replica(index uint32) *mapsyncv1.MapSubscription {
	return &mapsyncv1.MapSubscription{
		Map: index, Name: mapName, Layout: &mapsyncv1.Layout{KeySize: keySize, ValueSize: valueSize, Type: mapsyncv1.MapType_MAP_TYPE_HASH},
		Schema: wireSchema(), TellAll: true,
	}
}

// errRead says that an attacker got records that it must not get.
var errRead = errors.New("records were sent to an attacker")

// readAs subscribes as a node of the given name, and returns an error if it gets records.
func (c *cluster) readAs(ctx context.Context, conf *tls.Config, name string, m *mapsyncv1.MapSubscription) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, n := range c.nodes[:2] {
		s, err := c.subscribe(ctx, n, conf, name, uint64(time.Now().UnixNano()))
		if err != nil {
			continue // refused, which is right
		}
		s.ask(m)
		got := s.records()
		s.close()
		if got > 0 {
			return fmt.Errorf("%w: %d of %s as %q", errRead, got, n.name, name)
		}
	}
	return nil
}

func observe(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(stranger, testcert.Options{})
	if err != nil {
		return err
	}
	return c.readAs(ctx, conf, stranger, &mapsyncv1.MapSubscription{Map: 1, Name: mapName, Observe: true})
}

// spellings tries names that a careless comparison takes for the stranger's own or for a node's.
func spellings(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(stranger, testcert.Options{})
	if err != nil {
		return err
	}
	for _, name := range []string{stranger, strings.ToUpper(stranger), stranger + ".", "lb2", "LB2", "lb2.", "lb*", "*", "", "lb2\x00", strings.Repeat("a", 300)} {
		if err := c.readAs(ctx, conf, name, replica(1)); err != nil {
			return err
		}
	}
	return nil
}

// forgedNames tries certificates that have a node's name where it does not count.
func forgedNames(ctx context.Context, c *cluster) error {
	for i, o := range []testcert.Options{
		{DNSNames: []string{}},                        // in the subject alone
		{DNSNames: []string{"lb2.example"}},           // as a part
		{DNSNames: []string{"*"}},                     // as a wildcard
		{IPs: []net.IP{net.ParseIP(c.nodes[1].addr)}}, // by its address
	} {
		o.File = fmt.Sprint("forged", i)
		conf, err := c.tlsConfig("lb2", o)
		if err != nil {
			return err
		}
		if err := c.readAs(ctx, conf, "lb2", replica(1)); err != nil {
			return err
		}
	}
	return nil
}

// streamLoop opens streams one after another and says hello on each.
func streamLoop(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(outsideName, testcert.Options{})
	if err != nil {
		return err
	}
	for i := 0; i < 2000 && ctx.Err() == nil; i++ {
		s, err := c.subscribe(ctx, c.nodes[i%3], conf, outsideName, uint64(i+1))
		if err != nil {
			continue // refused, which is right
		}
		s.ask(replica(1))
		if i%2 == 0 {
			_, _ = s.Recv()
		}
		s.close()
	}
	return nil
}

// heldStreams opens connections and streams, of which half say hello, and keeps them.
func heldStreams(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(outsideName, testcert.Options{})
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
				ProtocolVersion: 1, Self: &mapsyncv1.Incarnation{Node: outsideName, Number: uint64(i + 1)},
			}}})
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	<-ctx.Done()
	return nil
}

// largeSchemas subscribes with schemas that are far larger than any map's.
func largeSchemas(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(outsideName, testcert.Options{})
	if err != nil {
		return err
	}
	huge := replica(1)
	huge.Schema.Key.Name = strings.Repeat("a", 64<<20)
	wide := replica(1)
	for i := range 200_000 {
		wide.Schema.Key.Fields = append(wide.Schema.Key.Fields, &mapsyncv1.Field{Name: fmt.Sprint("f", i), Number: uint32(i + 1)})
	}
	deep := replica(1)
	for range 5000 {
		inner := deep.Schema.Key
		deep.Schema.Key = &mapsyncv1.MessageType{Fields: []*mapsyncv1.Field{{Name: "a", Number: 1, Message: inner}}}
	}
	for _, m := range []*mapsyncv1.MapSubscription{huge, wide, deep, huge, wide, deep} {
		for _, n := range c.nodes[:2] {
			if err := c.refuses(ctx, n, conf, m); err != nil {
				return fmt.Errorf("schema of %d bytes to %s: %w", proto.Size(m), n.name, err)
			}
		}
	}
	return nil
}

// refuses returns an error unless a daemon refuses a subscription, or ends its stream because of
// the request.
func (c *cluster) refuses(ctx context.Context, n *node, conf *tls.Config, m *mapsyncv1.MapSubscription) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s, err := c.subscribe(ctx, n, conf, outsideName, uint64(time.Now().UnixNano()))
	if err != nil {
		return err
	}
	defer s.close()
	s.ask(m)
	for {
		answer, err := s.Recv()
		switch {
		case status.Code(err) == codes.ResourceExhausted, status.Code(err) == codes.Internal:
			return nil // larger or deeper than a request may be
		case err != nil:
			return fmt.Errorf("the stream ended for another reason: %w", err)
		case len(answer.GetBatch().GetDeltas()) > 0:
			return errRead
		case answer.GetRefused() != nil:
			return nil
		}
	}
}

// requestFlood sends requests without reading the answers.
func requestFlood(ctx context.Context, c *cluster) error {
	conf, err := c.tlsConfig(outsideName, testcert.Options{})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		s, err := c.subscribe(ctx, c.nodes[0], conf, outsideName, 1)
		if err != nil {
			return nil // refused, which is right
		}
		s.ask(replica(1))
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
