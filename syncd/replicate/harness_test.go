package replicate

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const (
	testKeySize   = 8
	testValueSize = 16
	testMap       = "ct"
	deadline      = 10 * time.Second
)

// node is a Replicator on a real port, with one table whose writer marks records as written without
// a kernel map.
type node struct {
	t     testing.TB
	self  table.Owner
	r     *Replicator
	tb    *table.Table
	addr  string
	lis   *breakableListener
	stops []func()
}

type nodeOption func(*Options)

func startNode(t testing.TB, name string, inc uint64, tb *table.Table, opts ...nodeOption) *node {
	t.Helper()
	n := &node{t: t, self: table.Owner{Node: name, Incarnation: inc}, tb: tb}
	o := Options{
		Self:             n.self,
		Dial:             func(p Peer) (*grpc.ClientConn, error) { return n.dial(p.Addr) },
		MinBackoff:       5 * time.Millisecond,
		MaxBackoff:       50 * time.Millisecond,
		positionInterval: 10 * time.Millisecond,
		heartbeat:        100 * time.Millisecond,
	}
	if os.Getenv("REPLICATE_TEST_LOG") != "" {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("self", name)
	}
	for _, opt := range opts {
		opt(&o)
	}
	var err error
	if n.r, err = New(o); err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	if n.tb == nil {
		n.tb = newTable(t, n.self, false)
	}
	n.addMap(testMap, n.tb)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: got error %v, want nil", err)
	}
	n.lis, n.addr = &breakableListener{Listener: lis}, lis.Addr().String()
	srv := grpc.NewServer(n.r.ServerOptions()...)
	n.r.Register(srv)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(n.lis) })
	wg.Go(func() {
		if err := n.r.Run(ctx); err != nil {
			t.Errorf("run: got error %v, want nil", err)
		}
	})
	n.stops = append(n.stops, sync.OnceFunc(func() { cancel(); srv.Stop(); wg.Wait() }))
	t.Cleanup(n.stop)
	poll.Within(t, deadline, "replication runs", func() bool {
		n.r.mu.Lock()
		defer n.r.mu.Unlock()
		return n.r.started
	})
	return n
}

func (n *node) dial(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient(addr, append(n.r.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
}

func (n *node) stop() {
	for _, stop := range n.stops {
		stop()
	}
}

func (n *node) addMap(name string, tb *table.Table) {
	n.t.Helper()
	n.addTyped(name, nil, nil, tb)
}

func (n *node) addTyped(name string, s *schema.Schema, links schema.Links, tb *table.Table) {
	n.t.Helper()
	layout := Layout{KeySize: tb.KeySize(), ValueSize: tb.ValueSize(), Schema: s, Links: links}
	if err := n.r.AddMap(name, layout, tb); err != nil {
		n.t.Fatalf("add map: got error %v, want nil", err)
	}
	n.stops = append(n.stops, startWriter(tb))
}

func (n *node) peer() Peer {
	return Peer{Node: n.self.Node, Incarnation: n.self.Incarnation, Addr: n.addr}
}

// connectNodes sets the nodes as the live peers of each other.
func connectNodes(nodes ...*node) {
	for _, n := range nodes {
		var peers []Peer
		for _, p := range nodes {
			if p != n {
				peers = append(peers, p.peer())
			}
		}
		n.r.SetPeers(peers)
	}
}

func newTable(t testing.TB, self table.Owner, sameMap bool) *table.Table {
	t.Helper()
	return newSizedTable(t, self, testKeySize, testValueSize, sameMap)
}

func newSizedTable(t testing.TB, self table.Owner, key, value int, sameMap bool) *table.Table {
	t.Helper()
	tb, err := table.New(table.Options{
		Self: self, KeySize: key, ValueSize: value, SameMap: sameMap, TombstoneTTL: time.Hour,
	})
	if err != nil {
		t.Fatalf("new table: got error %v, want nil", err)
	}
	return tb
}

// startWriter runs a writer of a table without a kernel map.
func startWriter(tb *table.Table) (stop func()) {
	quit, wake := make(chan struct{}), make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer tb.Subscribe(wake)()
		c := tb.NewCursor(0)
		defer c.Close()
		for {
			write(tb, c)
			select {
			case <-quit:
				return
			case <-wake:
			}
		}
	})
	return sync.OnceFunc(func() { close(quit); wg.Wait() })
}

func write(tb *table.Table, c *table.Cursor) {
	for more := true; more; {
		tb.Update(func(tx *table.Tx) {
			var rec table.Record
			for range 256 {
				if more = tx.NextDirty(c, &rec); !more {
					break
				}
				tx.Applied(rec.Ref, rec.Version, nil)
			}
			tx.SetApplied(c.Position())
		})
	}
}

func key(i int) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(i))
}

func value(i int) []byte {
	b := make([]byte, testValueSize)
	binary.BigEndian.PutUint64(b, uint64(i))
	return b
}

// put makes local changes that set the keys from to to to the value v.
func (n *node) put(from, to, v int) {
	n.t.Helper()
	putTable(n.t, n.tb, from, to, v)
}

func putTable(t testing.TB, tb *table.Table, from, to, v int) {
	t.Helper()
	tb.Update(func(tx *table.Tx) {
		for i := from; i < to; i++ {
			o := tx.Local(&table.Change{Key: key(i), Value: value(v), Time: time.Now().UnixNano()})
			if o != table.Accepted {
				t.Errorf("put key %d: got %s, want %s", i, o, table.Accepted)
			}
		}
	})
}

func (n *node) del(from, to int) {
	n.t.Helper()
	n.tb.Update(func(tx *table.Tx) {
		for i := from; i < to; i++ {
			o := tx.Local(&table.Change{Key: key(i), Op: table.OpDelete, Time: time.Now().UnixNano()})
			if o != table.Accepted {
				n.t.Errorf("delete key %d: got %s, want %s", i, o, table.Accepted)
			}
		}
	})
}

// dump returns the records of a table as text: owner, version and content by key.
func dump(tb *table.Table) map[string]string {
	out := make(map[string]string)
	c := tb.NewCursor(0)
	defer c.Close()
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		for tx.Next(c, &rec) {
			o := tx.Owner(rec.Owner)
			out[string(rec.Key)] = fmt.Sprintf("%x v%d %s.%d", rec.Value, rec.Version, o.Node, o.Incarnation)
		}
	})
	return out
}

// live returns the values of the live keys of a table.
func live(tb *table.Table) map[int]int {
	out := make(map[int]int)
	c := tb.NewCursor(0)
	defer c.Close()
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		for tx.Next(c, &rec) {
			if !rec.Delete {
				out[int(binary.BigEndian.Uint64(rec.Key))] = int(binary.BigEndian.Uint64(rec.Value))
			}
		}
	})
	return out
}

// status returns the status of n's map with another node.
func (n *node) status(of string, name string) (MapStatus, PeerStatus) {
	for _, p := range n.r.Status() {
		if p.Node != of {
			continue
		}
		for _, m := range p.Maps {
			if m.Name == name {
				return m, p
			}
		}
	}
	return MapStatus{}, PeerStatus{}
}

// breakableListener is a listener whose connections a test can cut and slow down.
type breakableListener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (b *breakableListener) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if err == nil {
		b.mu.Lock()
		b.conns = append(b.conns, c)
		b.mu.Unlock()
	}
	return c, err
}

func (b *breakableListener) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		c.Close()
	}
	b.conns = nil
}

func noDial(Peer) (*grpc.ClientConn, error) {
	return nil, errors.New("unexpected dial")
}

func subscription(index uint32, name string, l Layout) *mapsyncv1.MapSubscription {
	if l.Schema == nil {
		l.Schema = schema.FromSizes(name, l.KeySize, l.ValueSize)
	}
	return &mapsyncv1.MapSubscription{Map: index, Name: name, Layout: l.proto(), Schema: wire.SchemaToProto(l.Schema)}
}

// wireBytes returns bytes in the wire format of an opaque map.
func wireBytes(b []byte) []byte {
	b = bytes.TrimRight(b, "\x00")
	if len(b) == 0 {
		return nil
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)
}

// newTestReplicator returns the replicator of node b with the map testMap, and its table.
func newTestReplicator(t *testing.T) (*Replicator, *table.Table) {
	t.Helper()
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	tb := newTable(t, r.opt.Self, false)
	if err := r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, tb); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	return r, tb
}

// newAcceptedStream returns an inbound stream whose subscription 1 to testMap was accepted.
func newAcceptedStream(r *Replicator, p Peer) (*inboundStream, *inboundMap) {
	s := newInboundStream(r, p)
	s.appendSubscriptions(nil, r.localMaps(), time.Now())
	in := s.maps[testMap]
	in.accept(&mapsyncv1.MapAccepted{Map: in.index, Generation: 1, Reset_: true, Schema: in.m.wireSchema})
	return s, in
}

// frameBytes returns a copy of an encoded message.
func frameBytes(m *wire.SentFrame) (b []byte) {
	for _, piece := range m.Buffers() {
		b = append(b, piece.ReadOnlyData()...)
	}
	return b
}
