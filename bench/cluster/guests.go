package cluster

import (
	"context"
	"encoding/base64"
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

// roleGuest makes this binary a member of the cluster that is not a node.
const roleGuest = "guest"

// guestKind is what a guest does.
type guestKind string

const (
	// guestHostile has a certificate, and sends records, acknowledgements and digests that
	// no node would send.
	guestHostile guestKind = "hostile"
	// guestCrowd is many names, of which each joins, sends a record and leaves.
	guestCrowd guestKind = "crowd"
)

// Keys of guests' own records have these in place of a node's number.
const (
	hostileNode = 1<<31 + 1
	crowdNode   = 1<<31 + 2
)

// Versions in the values of the hostile member, in place of those of a data plane.
const (
	forgedValue   = 0xbad // in the name of a node
	inventedValue = 0xfad // in the name of owners that were never live
)

// guestSettings are those of a guest, which ends at SIGTERM.
type guestSettings struct {
	Kind     guestKind
	Seed     uint64
	Names    int    // of a crowd
	AtOnce   int    // of these
	Address  string // its IP address
	Join     []string
	DeadTime time.Duration
	Dir      string        // of its certificate, key, CA and gossip key
	Ahead    time.Duration // of its wall clock
	Flows    int           // of each node
	Nodes    int
}

// nodeName is the name of node number i.
func nodeName(i int) string { return fmt.Sprintf("n%d", i) }

// crowdName is that of member i of a crowd.
func crowdName(i int) string { return fmt.Sprintf("crowd-%d", i) }

// runGuest takes part until SIGTERM.
func runGuest() error {
	var s guestSettings
	if err := json.Unmarshal([]byte(os.Getenv(settingsVariable)), &s); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	g, err := newGuest(&s)
	if err != nil {
		return err
	}
	fmt.Println("guest is up")
	if s.Kind == guestCrowd {
		return g.crowd(ctx)
	}
	return g.hostile(ctx)
}

// guest is one at work.
type guest struct {
	*guestSettings
	key     []byte
	records *hostile.Records
	began   time.Time

	mu   sync.Mutex // guards what follows
	rand *rand.Rand
	next uint64
}

func newGuest(s *guestSettings) (*guest, error) {
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
	return &guest{guestSettings: s, key: key, records: records, began: time.Now(), rand: rand.New(rand.NewPCG(s.Seed, 3))}, nil
}

// version is one that a node with this guest's clock would give out now.
func (g *guest) version() uint64 { return uint64(time.Now().Add(g.Ahead).UnixNano()) }

func (g *guest) join(ctx context.Context, name string, talk func(context.Context, *hostile.Outlet) error,
	hear func(*hostile.Outlet, *mapsyncv1.SubscribeRequest),
) (*hostile.Member, error) {
	creds, err := peers.NewCredentials(peers.CredentialsOptions{
		CertFile: filepath.Join(g.Dir, certFile), KeyFile: filepath.Join(g.Dir, keyFile), CAFile: filepath.Join(g.Dir, caFile), NodeName: name,
	})
	if err != nil {
		return nil, err
	}
	return hostile.Join(ctx, hostile.Options{
		Name: name, Incarnation: g.version(), GossipAddr: net.JoinHostPort(g.Address, "0"), ServiceAddr: net.JoinHostPort(g.Address, "0"),
		Join: g.Join, GossipKey: g.key, DeadTime: g.DeadTime, Credentials: creds, Talk: talk, Hear: hear,
	})
}

// crowdStay is for how long a name of a crowd lives at most.
const crowdStay = 1500 * time.Millisecond

// crowd has each name join, send one record to each node that subscribes, and leave.
func (g *guest) crowd(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(g.AtOnce)
	for i := range g.Names {
		if ctx.Err() != nil {
			break
		}
		all.Go(func() error { return g.passer(ctx, i) })
	}
	err := all.Wait()
	fmt.Println("guest is done")
	return err
}

// passer is one of a crowd. It stays until a node has its record.
func (g *guest) passer(ctx context.Context, i int) error {
	heard := make(chan struct{})
	once := sync.OnceFunc(func() { close(heard) })
	key, value := make([]byte, keySize), make([]byte, valueSize)
	fillKey(key, crowdNode, uint32(i))
	version := g.version()
	fillValue(value, uint32(i), version)
	m, err := g.join(ctx, crowdName(i), func(_ context.Context, o *hostile.Outlet) error {
		return o.Batch([]*mapsyncv1.Incarnation{o.Self()}, []*mapsyncv1.Delta{g.records.Update(key, value, 0, version)}, true)
	}, func(_ *hostile.Outlet, r *mapsyncv1.SubscribeRequest) {
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
	case <-heard:
	case <-time.After(crowdStay):
	}
	return nil
}

// hostileName is that of the hostile member.
const hostileName = "hostile"

// hostile sends what no node would send until the context ends.
func (g *guest) hostile(ctx context.Context) error {
	m, err := g.join(ctx, hostileName, g.talk, g.answer)
	if err != nil {
		return err
	}
	<-ctx.Done()
	m.Close()
	return nil
}

// errEnough ends a stream after what a node must not go on after.
var errEnough = errors.New("sent what ends the stream")

// talk sends one thing after another. The choices follow from the seed; their effect on the nodes
// depends on when each of them subscribes.
func (g *guest) talk(ctx context.Context, o *hostile.Outlet) error {
	for {
		g.mu.Lock()
		send := g.any(o)
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

// any chooses what to send next. The lock is held.
func (g *guest) any(o *hostile.Outlet) func() error {
	self := []*mapsyncv1.Incarnation{o.Self()}
	switch n := g.rand.IntN(100); {
	case n < 40: // as a node would
		return func() error { return o.Batch(self, g.own(1+n), n%2 == 0) }
	case n < 70: // in the name of another
		victim := g.rand.IntN(g.Nodes)
		owners := []*mapsyncv1.Incarnation{{Node: nodeName(victim), Number: g.rand.Uint64()}}
		deltas := g.forged(victim, forgedValue)
		return func() error { return o.Batch(owners, deltas, true) }
	case n < 80: // in the name of owners that were never live, over flows of a node
		var owners []*mapsyncv1.Incarnation
		for range 20 {
			owners = append(owners, &mapsyncv1.Incarnation{Node: fmt.Sprint("invented-", g.rand.IntN(1000)), Number: g.rand.Uint64()})
		}
		deltas := g.forged(g.rand.IntN(g.Nodes), inventedValue)
		for i, d := range deltas {
			d.Owner = uint32(i % len(owners))
		}
		return func() error { return o.Batch(owners, deltas, true) }
	case n < 95:
		d := g.digest(o, nil)
		return func() error { return o.Send(d) }
	default: // malformed
		b := &mapsyncv1.Batch{Map: o.Index, Origin: o.Self(), PreviousPosition: g.rand.Uint64(), Position: g.rand.Uint64(), Owners: self, Deltas: g.own(1)}
		return func() error { return errors.Join(o.Raw(b), errEnough) }
	}
}

// own returns deltas of the member's own. Equal versions have equal values. The lock is held.
func (g *guest) own(n int) []*mapsyncv1.Delta {
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

// forged returns deltas over flows of a node. The lock is held.
func (g *guest) forged(victim int, version uint64) []*mapsyncv1.Delta {
	var deltas []*mapsyncv1.Delta
	key, value := make([]byte, keySize), make([]byte, valueSize)
	for range 1 + g.rand.IntN(64) {
		flow := uint32(g.rand.IntN(g.Flows))
		fillKey(key, uint32(victim), flow)
		fillValue(value, flow, version)
		if g.rand.IntN(3) == 0 {
			deltas = append(deltas, g.records.Delete(key, 0, g.version()))
		} else {
			deltas = append(deltas, g.records.Update(key, value, 0, g.version()))
		}
	}
	return deltas
}

// digest returns one that agrees with nothing. The lock is held.
func (g *guest) digest(o *hostile.Outlet, buckets []byte) *mapsyncv1.SubscribeResponse {
	d := &mapsyncv1.Digest{Map: o.Index, Position: o.Position, Key: g.rand.Uint64(), Scope: g.rand.Uint64()}
	for i := range g.Nodes {
		d.Nodes = append(d.Nodes, &mapsyncv1.NodeDigest{Node: nodeName(i), Sum: g.rand.Uint64(), Loose: g.rand.Uint64(), Live: 5, Buckets: buckets})
	}
	return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: d}}
}

// answer answers comparisons and repairs with what is wrong.
func (g *guest) answer(o *hostile.Outlet, r *mapsyncv1.SubscribeRequest) {
	switch {
	case r.GetCompare() != nil:
		g.mu.Lock()
		d := g.digest(o, make([]byte, 8<<10))
		g.mu.Unlock()
		_ = o.Send(d) // the stream's end is noticed elsewhere
	case r.GetRetell() != nil:
		g.mu.Lock()
		b := &mapsyncv1.Batch{
			Map: o.Index, Origin: o.Self(), PreviousPosition: o.Position, Position: o.Position,
			Owners: []*mapsyncv1.Incarnation{o.Self()}, Deltas: g.own(3), Retold: true, Requested: g.rand.IntN(2) == 0,
		}
		g.mu.Unlock()
		_ = o.Raw(b)
		_ = o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Retold{Retold: &mapsyncv1.Retold{Map: o.Index, Records: 1 << 40}}})
	}
}
