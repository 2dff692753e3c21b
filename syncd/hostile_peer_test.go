package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mapsync/internal/testcert"
	"mapsync/peers"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"

	"github.com/hashicorp/memberlist"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// The addresses in the network namespace of the test. hostileJoin is in the setting join of the daemon.
const (
	daemonGossip, daemonService = "127.0.0.1:7946", "127.0.0.1:7947"
	daemonMetrics               = "127.0.0.1:9746"
	hostileJoin                 = "127.0.0.9:7946"
)

// hostilePeer is a node of the cluster that sends hostile texts.
type hostilePeer struct {
	mapsyncv1.UnimplementedReplicationServiceServer
	*hostileHost
	self *mapsyncv1.Incarnation
	// digest is the last one of the daemon: a peer uses the same key.
	digest atomic.Pointer[mapsyncv1.Digest]
	// answer answers a request of the daemon other than a probe of the clock.
	answer func(s *hostileStream, m *mapsyncv1.SubscribeRequest) error
}

// hostileStream is a stream from the daemon. Its Send is safe for concurrent use.
type hostileStream struct {
	mapsyncv1.ReplicationService_SubscribeServer
	mu sync.Mutex
	ct atomic.Uint32 // number of the subscription to ctMap; 0: none
}

func (s *hostileStream) send(m *mapsyncv1.SubscribeResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Send(m)
}

// startPeer starts a peer with a certificate, which joins the daemon.
func (h *hostileHost) startPeer(name, host string, answer func(*hostileStream, *mapsyncv1.SubscribeRequest) error) *hostilePeer {
	h.Helper()
	p := &hostilePeer{hostileHost: h, self: &mapsyncv1.Incarnation{Node: name, Number: uint64(time.Now().UnixNano())}, answer: answer}
	listener, err := net.Listen("tcp", host+":7947")
	if err != nil {
		h.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(h.tls(name, testcert.Options{}))))
	mapsyncv1.RegisterReplicationServiceServer(server, p)
	go func() { _ = server.Serve(listener) }()
	h.Cleanup(server.Stop)
	cluster, err := peers.New(peers.Options{
		NodeName: name, Incarnation: p.self.Number, BindAddr: host + ":7946", ServiceAddr: host + ":7947", Join: []string{daemonGossip},
	})
	if err != nil {
		h.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- cluster.Run(ctx) }()
	h.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			h.Error(err)
		}
	})
	return p
}

// tls returns the settings of a node with its certificate.
func (h *hostileHost) tls(name string, options testcert.Options) *tls.Config {
	h.Helper()
	files, err := h.ca.Issue(name, options)
	if err != nil {
		h.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	if err != nil {
		h.Fatal(err)
	}
	pem, err := os.ReadFile(files.CAFile)
	if err != nil {
		h.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: daemonName, MinVersion: tls.VersionTLS13}
}

// Subscribe serves the daemon.
func (p *hostilePeer) Subscribe(stream mapsyncv1.ReplicationService_SubscribeServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	s := &hostileStream{ReplicationService_SubscribeServer: stream}
	welcome := &mapsyncv1.Welcome{ProtocolVersion: 2, Self: p.self, Reports: true, OwnerRequests: true}
	err := s.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{Welcome: welcome}})
	go p.beat(s)
	for err == nil {
		var m *mapsyncv1.SubscribeRequest
		if m, err = stream.Recv(); err != nil {
			break
		}
		if probe := m.GetClockProbe(); probe != nil {
			now := uint64(time.Now().UnixNano())
			reply := &mapsyncv1.ClockReply{ProbeSent: probe.GetSent(), Received: now, Clock: now}
			err = s.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_ClockReply{ClockReply: reply}})
			continue
		}
		err = p.answer(s, m)
	}
	return err
}

// beat sends heartbeats and digests until the stream ends.
func (p *hostilePeer) beat(s *hostileStream) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-s.Context().Done():
			return
		case <-ticker.C:
			_ = s.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{Heartbeat: &mapsyncv1.Heartbeat{}}})
			p.sendDigest(s)
		}
	}
}

// serve accepts a subscription to ctMap and sends an entry of an owner with an interface.
func (p *hostilePeer) serve(s *hostileStream, index uint32, owner *mapsyncv1.Incarnation, dev string) error {
	accepted := &mapsyncv1.MapAccepted{Map: index, Generation: 1, Reset_: true, Schema: wire.SchemaToProto(p.ctSchema())}
	batch := &mapsyncv1.Batch{
		Map: index, Origin: p.self, Position: 1, Owners: []*mapsyncv1.Incarnation{owner}, CaughtUp: true,
		Deltas: []*mapsyncv1.Delta{{Key: wireKey(dev), Version: p.self.Number, Operation: mapsyncv1.Operation_OPERATION_UPDATE}},
	}
	return errors.Join(
		s.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: accepted}}),
		s.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: batch}}))
}

// wireKey encodes a key of ctMap.
func wireKey(dev string) []byte {
	if dev == "" {
		return nil
	}
	return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), dev)
}

// replicates answers like a peer: it refuses a map, cannot compare the other one, and sends an entry with an interface that
// the daemon lacks.
func (p *hostilePeer) replicates(s *hostileStream, m *mapsyncv1.SubscribeRequest) error {
	subscription := m.GetSubscribe()
	switch {
	case subscription.GetName() == ctMap:
		s.ct.Store(subscription.GetMap())
		return p.serve(s, subscription.GetMap(), p.self, "é-missing")
	case subscription != nil:
		refused := &mapsyncv1.MapRefused{Map: subscription.GetMap(), Text: hostile("refused")}
		return s.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Refused{Refused: refused}})
	case m.GetOwners() != nil:
		sent := &mapsyncv1.OwnersSent{Map: m.GetOwners().GetMap(), Serial: m.GetOwners().GetSerial()}
		return s.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_OwnersSent{OwnersSent: sent}})
	}
	return nil
}

// sendDigest sends that ctMap cannot be compared.
func (p *hostilePeer) sendDigest(s *hostileStream) {
	key, index := p.digest.Load(), s.ct.Load()
	if key == nil || index == 0 {
		return
	}
	digest := &mapsyncv1.Digest{
		Map: index, Position: 1, InconclusiveReason: hostile("inconclusive"),
		KeyFingerprint: key.GetKeyFingerprint(), ScopeFingerprint: key.GetScopeFingerprint(),
	}
	_ = s.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: digest}})
}

// breaks ends each stream in another way: with an error, a name of an owner, an interface, and a name of a source.
func (p *hostilePeer) breaks() func(*hostileStream, *mapsyncv1.SubscribeRequest) error {
	var count atomic.Int32
	return func(s *hostileStream, m *mapsyncv1.SubscribeRequest) error {
		if m.GetSubscribe().GetName() != ctMap {
			return nil
		}
		index := m.GetSubscribe().GetMap()
		switch count.Add(1) % 4 {
		case 1:
			return status.Error(codes.Internal, hostile("status"))
		case 2:
			return p.serve(s, index, &mapsyncv1.Incarnation{Node: hostile("owner"), Number: 1}, "")
		case 3:
			return p.serve(s, index, p.self, hostileName("wire"))
		}
		sources := &mapsyncv1.Sources{Map: index, Nodes: []string{hostile("source")}}
		return errors.Join(p.serve(s, index, p.self, ""),
			s.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Sources{Sources: sources}}))
	}
}

// subscribe opens a stream to the daemon, and subscribes to ctMap after a Hello.
func (h *hostileHost) subscribe(config *tls.Config, hello *mapsyncv1.Hello, observe bool) mapsyncv1.ReplicationService_SubscribeClient {
	h.Helper()
	conn, err := grpc.NewClient(daemonService, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { conn.Close() })
	stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	hello.ProtocolVersion = 2
	_ = stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Hello{Hello: hello}})
	subscription := &mapsyncv1.MapSubscription{Map: 1, Name: ctMap, Observe: observe, Schema: wire.SchemaToProto(h.ctSchema())}
	_ = stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: subscription}})
	return stream
}

// report subscribes to ctMap as the peer, and reports an entry that it cannot hold.
func (p *hostilePeer) report() {
	p.Helper()
	stream := p.subscribe(p.tls(p.self.Node, testcert.Options{}), &mapsyncv1.Hello{Self: p.self, Reports: true}, false)
	report := &mapsyncv1.MapReport{Map: 1, Live: 1, MaxEntries: 1, Refused: 1, Exceptions: []*mapsyncv1.MapException{
		{Key: wireKey(hostileName("key")), Reason: hostile("reason")},
	}}
	_ = stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Report{Report: report}})
	go func() { // until the end of the test
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if digest := m.GetDigest(); digest != nil {
				p.digest.Store(digest)
			}
		}
	}()
}

// startMember starts a gossip member with a hostile name.
func (h *hostileHost) startMember() {
	h.Helper()
	conf := memberlist.DefaultLocalConfig()
	conf.Name, conf.EnableCompression = hostile("member"), false
	conf.BindAddr, conf.BindPort, conf.AdvertiseAddr, conf.AdvertisePort = "127.0.0.8", 7946, "127.0.0.8", 7946
	conf.Logger = log.New(io.Discard, "", 0)
	list, err := memberlist.Create(conf)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = list.Shutdown() })
	if _, err := list.Join([]string{daemonGossip}); err != nil {
		h.Fatal(err)
	}
}

// serveGossipError answers each gossip stream at hostileJoin with a hostile error.
func serveGossipError(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", hostileJoin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	const messageError = 13
	text := hostile("gossip")
	answer := append([]byte{messageError, 0x81, 0xa5}, "Error\xda"...)
	answer = append(binary.BigEndian.AppendUint16(answer, uint16(len(text))), text...)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(answer)
			go func() {
				_, _ = io.Copy(io.Discard, conn) // until the client closes it
				_ = conn.Close()
			}()
		}
	}()
}
