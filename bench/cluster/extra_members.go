package cluster

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"mapsync/bench/hostile"
	"mapsync/peers"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// roleExtraMember makes this binary a member of the cluster that is not a node.
const roleExtraMember = "extra-member"

// extraMemberKind is the behaviour of an extra member.
type extraMemberKind string

const (
	// extraMemberHostile has a certificate. It sends records, acknowledgements and digests that no
	// node would send.
	extraMemberHostile extraMemberKind = "hostile"
	// extraMemberChurn uses many names. Each of them joins, sends a record and leaves.
	extraMemberChurn extraMemberKind = "churn"
)

// Keys of the extra members' own records have these numbers in place of a node's number.
const (
	hostileNode = 1<<31 + 1
	churnNode   = 1<<31 + 2
)

// Versions in the values of the hostile member, in place of the versions of a data plane.
const (
	forgedValue   = 0xbad // in records with the name of a node as owner
	inventedValue = 0xfad // in records of owners that were never live
)

// extraMemberSettings are the settings of an extra member, which ends at SIGTERM.
type extraMemberSettings struct {
	Kind     extraMemberKind
	Seed     uint64
	Names    int    // number of names of the churn member
	AtOnce   int    // maximum of Names that are joined at the same time
	Address  string // its IP address
	Join     []string
	DeadTime time.Duration
	Dir      string        // of its certificate, key, CA and gossip key
	Ahead    time.Duration // of its wall clock, relative to the machine's
	Flows    int           // of each node
	Nodes    int
}

// nodeName returns the name of node number i.
func nodeName(i int) string { return fmt.Sprintf("n%d", i) }

// churnName returns the name of churn member i.
func churnName(i int) string { return fmt.Sprintf("churn-%d", i) }

// runExtraMember takes part in the cluster until SIGTERM.
func runExtraMember() error {
	var s extraMemberSettings
	if err := json.Unmarshal([]byte(os.Getenv(settingsVariable)), &s); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	g, err := newExtraMember(&s)
	if err != nil {
		return err
	}
	fmt.Println("extra member is up")
	if s.Kind == extraMemberChurn {
		return g.churn(ctx)
	}
	return g.hostile(ctx)
}

// extraMember is a running extra member.
type extraMember struct {
	*extraMemberSettings
	key     []byte
	records *hostile.Records
	began   time.Time

	mu   sync.Mutex // protects the fields below
	rand *rand.Rand
	next uint64
}

func newExtraMember(s *extraMemberSettings) (*extraMember, error) {
	text, err := os.ReadFile(filepath.Join(s.Dir, gossipFile))
	if err != nil {
		return nil, fmt.Errorf("read the gossip key: %w", err)
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("read the gossip key: %w", err)
	}
	records, err := hostile.NewRecords("ct", keySize, valueSize)
	if err != nil {
		return nil, err
	}
	return &extraMember{extraMemberSettings: s, key: key, records: records, began: time.Now(), rand: rand.New(rand.NewPCG(s.Seed, 3))}, nil
}

// version returns the version that a node with this member's clock would use now.
func (g *extraMember) version() uint64 { return uint64(time.Now().Add(g.Ahead).UnixNano()) }

func (g *extraMember) join(ctx context.Context, name string, onSubscribe func(context.Context, *hostile.OutboundMap) error,
	onRequest func(*hostile.OutboundMap, *mapsyncv1.SubscribeRequest),
) (*hostile.Member, error) {
	creds, err := peers.NewCredentials(peers.CredentialsOptions{
		CertFile: filepath.Join(g.Dir, certFile), KeyFile: filepath.Join(g.Dir, keyFile), CAFile: filepath.Join(g.Dir, caFile), NodeName: name,
	})
	if err != nil {
		return nil, err
	}
	return hostile.Join(ctx, hostile.Options{
		Name: name, Incarnation: g.version(), GossipAddr: net.JoinHostPort(g.Address, "0"), ServiceAddr: net.JoinHostPort(g.Address, "0"),
		Join: g.Join, GossipKey: g.key, DeadTime: g.DeadTime, Credentials: creds, OnSubscribe: onSubscribe, OnRequest: onRequest,
	})
}

// churnStay is the longest time that a churn member stays.
const churnStay = 1500 * time.Millisecond

// churn makes each name join, send one record to each node that subscribes, and leave.
func (g *extraMember) churn(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(g.AtOnce)
	for i := range g.Names {
		if ctx.Err() != nil {
			break
		}
		all.Go(func() error { return g.joinBriefly(ctx, i) })
	}
	err := all.Wait()
	fmt.Println("extra member is done")
	return err
}

// joinBriefly runs one churn member. It stays until a node has acknowledged its record, at most
// churnStay.
func (g *extraMember) joinBriefly(ctx context.Context, i int) error {
	acked := make(chan struct{})
	once := sync.OnceFunc(func() { close(acked) })
	key, value := make([]byte, keySize), make([]byte, valueSize)
	fillKey(key, churnNode, uint32(i))
	version := g.version()
	fillValue(value, uint32(i), version)
	m, err := g.join(ctx, churnName(i), func(_ context.Context, o *hostile.OutboundMap) error {
		return o.Batch([]*mapsyncv1.Incarnation{o.Self()}, []*mapsyncv1.Delta{g.records.Update(key, value, 0, version)}, true)
	}, func(_ *hostile.OutboundMap, r *mapsyncv1.SubscribeRequest) {
		if r.GetAck().GetPosition() > 0 {
			once()
		}
	})
	if err != nil {
		return err
	}
	defer m.Close()
	select {
	case <-ctx.Done():
	case <-acked:
	case <-time.After(churnStay):
	}
	return nil
}

// hostileName is the name of the hostile member.
const hostileName = "hostile"

// hostile sends messages that no node would send, until the context ends.
func (g *extraMember) hostile(ctx context.Context) error {
	m, err := g.join(ctx, hostileName, g.sendMessages, g.answerRequest)
	if err != nil {
		return err
	}
	<-ctx.Done()
	m.Close()
	return nil
}

// errStreamEnds ends a stream after a message that a node must answer by closing the stream.
var errStreamEnds = errors.New("sent what ends the stream")

// sendMessages sends one message after another. The choices follow from the seed. Their effect on
// the nodes depends on the time at which each node subscribes.
func (g *extraMember) sendMessages(ctx context.Context, o *hostile.OutboundMap) error {
	for {
		g.mu.Lock()
		send := g.nextMessage(o)
		pause := time.Duration(g.rand.IntN(40)) * time.Millisecond
		g.mu.Unlock()
		if err := send(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// nextMessage chooses the next message. The caller holds the lock.
func (g *extraMember) nextMessage(o *hostile.OutboundMap) func() error {
	self := []*mapsyncv1.Incarnation{o.Self()}
	switch n := g.rand.IntN(100); {
	case n < 40: // as a node would send them
		return func() error { return o.Batch(self, g.ownDeltas(1+n), n%2 == 0) }
	case n < 70: // with another node as owner
		victim := g.rand.IntN(g.Nodes)
		owners := []*mapsyncv1.Incarnation{{Node: nodeName(victim), Number: g.rand.Uint64()}}
		deltas := g.forgedDeltas(victim, forgedValue)
		return func() error { return o.Batch(owners, deltas, true) }
	case n < 80: // with owners that were never live, over flows of a node
		var owners []*mapsyncv1.Incarnation
		for range 20 {
			owners = append(owners, &mapsyncv1.Incarnation{Node: fmt.Sprint("invented-", g.rand.IntN(1000)), Number: g.rand.Uint64()})
		}
		deltas := g.forgedDeltas(g.rand.IntN(g.Nodes), inventedValue)
		for i, d := range deltas {
			d.Owner = uint32(i % len(owners))
		}
		return func() error { return o.Batch(owners, deltas, true) }
	case n < 95:
		d := g.digest(o, nil)
		return func() error { return o.Send(d) }
	default: // malformed
		b := &mapsyncv1.Batch{Map: o.Index, Origin: o.Self(), PreviousPosition: g.rand.Uint64(), Position: g.rand.Uint64(), Owners: self, Deltas: g.ownDeltas(1)}
		return func() error { return errors.Join(o.SendBatch(b), errStreamEnds) }
	}
}

// ownDeltas returns deltas of the member's own records. Equal versions have equal values. The
// caller holds the lock.
func (g *extraMember) ownDeltas(n int) []*mapsyncv1.Delta {
	deltas := make([]*mapsyncv1.Delta, n)
	key, value := make([]byte, keySize), make([]byte, valueSize)
	for i := range deltas {
		flow, version := uint32(g.rand.IntN(100)), g.version()
		version = max(version, g.next+1)
		g.next = version
		fillKey(key, hostileNode, flow)
		fillValue(value, flow, version)
		deltas[i] = g.records.Update(key, value, 0, version)
	}
	return deltas
}

// forgedDeltas returns deltas over flows of a node. Values have the version twice, because a change in place
// replaces the first one. The caller holds the lock.
func (g *extraMember) forgedDeltas(victim int, version uint64) []*mapsyncv1.Delta {
	var deltas []*mapsyncv1.Delta
	key, value := make([]byte, keySize), make([]byte, valueSize)
	for range 1 + g.rand.IntN(64) {
		flow := uint32(g.rand.IntN(g.Flows))
		fillKey(key, uint32(victim), flow)
		fillValue(value, flow, version)
		binary.LittleEndian.PutUint64(value[8:], version)
		if g.rand.IntN(3) == 0 {
			deltas = append(deltas, g.records.Delete(key, 0, g.version()))
		} else {
			deltas = append(deltas, g.records.Update(key, value, 0, g.version()))
		}
	}
	return deltas
}

// digest returns a digest that disagrees with every table. The caller holds the lock.
func (g *extraMember) digest(o *hostile.OutboundMap, buckets []byte) *mapsyncv1.SubscribeResponse {
	d := &mapsyncv1.Digest{Map: o.Index, Position: o.Position, KeyFingerprint: g.rand.Uint64(), ScopeFingerprint: g.rand.Uint64()}
	for i := range g.Nodes {
		d.Nodes = append(d.Nodes, &mapsyncv1.NodeDigest{Node: nodeName(i), Sum: g.rand.Uint64(), VersionSum: g.rand.Uint64(), Live: 5, Buckets: buckets})
	}
	return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: d}}
}

// answerRequest answers compare and resend requests with false data.
func (g *extraMember) answerRequest(o *hostile.OutboundMap, r *mapsyncv1.SubscribeRequest) {
	switch {
	case r.GetCompare() != nil:
		g.mu.Lock()
		d := g.digest(o, make([]byte, 8<<10))
		g.mu.Unlock()
		_ = o.Send(d) // another goroutine detects the end of the stream
	case r.GetResend() != nil:
		g.mu.Lock()
		b := &mapsyncv1.Batch{
			Map: o.Index, Origin: o.Self(), PreviousPosition: o.Position, Position: o.Position,
			Owners: []*mapsyncv1.Incarnation{o.Self()}, Deltas: g.ownDeltas(3), Resent: true, Requested: g.rand.IntN(2) == 0,
		}
		g.mu.Unlock()
		_ = o.SendBatch(b)
		_ = o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: o.Index, Records: 1 << 40}}})
	}
}
