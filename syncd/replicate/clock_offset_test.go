package replicate

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// TestPeerClockKeepsTheBestSample has a peer whose clock is 1 h ahead and drifts, and whose replies
// sometimes wait behind other messages in one direction.
func TestPeerClockKeepsTheBestSample(t *testing.T) {
	const drift = 20e-6
	var c peerClock
	rnd := rand.New(rand.NewPCG(1, 2))
	begun := time.Now()
	theirs := func(at time.Duration) time.Duration { return time.Hour + at + time.Duration(drift*float64(at)) }
	for i := range 500 {
		at := time.Duration(i) * 5 * time.Second
		there, back := 100*time.Microsecond, 100*time.Microsecond
		if i >= initialClockProbes && rnd.IntN(3) > 0 {
			back += time.Duration(rnd.IntN(int(time.Second)))
		}
		kept := time.Duration(rnd.IntN(int(10 * time.Millisecond)))
		m := c.newProbe(begun.Add(at)).GetClockProbe()
		c.pending[0].sentAt = begun.Add(at)
		received := at + there
		end := received + kept + back
		err := c.handleReply(&mapsyncv1.ClockReply{
			ProbeSent: m.GetSent(), Received: uint64(theirs(received)), Clock: uint64(theirs(received + kept)),
		}, int64(end), begun.Add(end))
		if err != nil {
			t.Fatalf("handle reply: got error %v, want nil", err)
		}
		if wrong := (c.offset - (theirs(end) - end)).Abs(); wrong > 2*time.Millisecond {
			t.Fatalf("offset after %s: got an error of %s, from a sample of age %s with a round trip of %s, want at most %s", end, wrong, begun.Add(end).Sub(c.sampledAt), c.roundTrip, 2*time.Millisecond)
		}
	}
}

// TestPeerClockFollowsStep checks that a worse sample is ignored unless it contradicts the current one.
func TestPeerClockFollowsStep(t *testing.T) {
	var c peerClock
	now := time.Now()
	c.addSample(time.Hour, 100*time.Microsecond, now)
	c.addSample(time.Hour+400*time.Microsecond, time.Millisecond, now.Add(time.Second))
	if c.offset != time.Hour {
		t.Errorf("offset after a worse sample: got %s, want 1h", c.offset)
	}
	c.addSample(2*time.Hour, 10*time.Millisecond, now.Add(2*time.Second))
	if c.offset != 2*time.Hour {
		t.Errorf("offset after a clock step: got %s, want 2h", c.offset)
	}
}

// TestInvalidClockReplies checks replies that are protocol violations, and the bound of pending probes.
func TestInvalidClockReplies(t *testing.T) {
	for name, corrupt := range map[string]func(*mapsyncv1.ClockReply){
		"unknown probe":        func(m *mapsyncv1.ClockReply) { m.ProbeSent++ },
		"clock out of range":   func(m *mapsyncv1.ClockReply) { m.Clock = math.MaxUint64 },
		"sent before received": func(m *mapsyncv1.ClockReply) { m.Received = m.Clock + 1 },
	} {
		var c peerClock
		sent := c.newProbe(time.Now()).GetClockProbe().GetSent()
		m := &mapsyncv1.ClockReply{ProbeSent: sent, Received: 5, Clock: 5}
		corrupt(m)
		if err := c.handleReply(m, time.Now().UnixNano(), time.Now()); !errors.Is(err, errProtocol) {
			t.Errorf("%s: handle reply: got %v, want a protocol error", name, err)
		}
		if c.valid {
			t.Errorf("%s: handle reply: got a sample, want none", name)
		}
	}
	var c peerClock
	sent := c.newProbe(time.Now()).GetClockProbe().GetSent()
	// The peer cannot have kept the probe longer than the whole round trip.
	if err := c.handleReply(&mapsyncv1.ClockReply{ProbeSent: sent, Clock: 1 << 60}, time.Now().UnixNano(), time.Now()); err != nil || c.valid {
		t.Errorf("impossible sample: got error %v, sample stored: %v, want no error and false", err, c.valid)
	}
	for range maxPendingProbes {
		c.newProbe(time.Unix(0, 5))
	}
	if m := c.newProbe(time.Now()); m != nil || len(c.pending) != maxPendingProbes {
		t.Errorf("pending probes: got %d, want maxPendingProbes", len(c.pending))
	}
	for i := range c.pending[1:] {
		if c.pending[i+1].id <= c.pending[i].id {
			t.Error("ids of probes: got equal or decreasing ids, want increasing ids")
		}
	}
}

// TestProbesAreBounded sends more probes than a stream accepts.
func TestProbesAreBounded(t *testing.T) {
	r, _ := fuzzReplicator(t)
	s := newOutboundStream(r, table.Owner{Node: "x", Incarnation: 1}, &discardBatches{responseSender: discardStream{}})
	ask := &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_ClockProbe{ClockProbe: &mapsyncv1.ClockProbe{}}}
	for range 3 {
		for i := range maxPendingProbes {
			if err := s.handle(ask); err != nil {
				t.Fatalf("probe %d: got %v, want nil", i, err)
			}
		}
		if err := s.handle(ask); !errors.Is(err, errProtocol) {
			t.Errorf("probe above the limit: got %v, want a protocol error", err)
		}
		if err := s.answerProbes(); err != nil {
			t.Fatalf("answer probes: got error %v, want nil", err)
		}
	}
}

// kernelClock is the clocks of a machine that was booted at some time.
type kernelClock struct {
	begun      time.Time
	boot, wall time.Duration // ahead of the clocks of other machines
}

func (k kernelClock) now() time.Time { return time.Now().Add(k.wall) }

func (k kernelClock) ktime() int64 { return int64(time.Since(k.begun) + k.boot) }

func (k kernelClock) jiffies() uint64 { return uint64(k.ktime() / 4e6) }

func (k kernelClock) times() schema.Times {
	both := time.Now() // has the wall clock and the monotonic clock of the same moment
	now, ktime := both.Add(k.wall).UnixNano(), int64(both.Sub(k.begun)+k.boot)
	return schema.Times{
		Ktime: now - ktime, Boottime: now - ktime - int64(time.Minute), // suspended for a minute
		Jiffies: uint64(ktime / 4e6), JiffiesAt: now - ktime%4e6, Tick: 4e6,
	}
}

func (k kernelClock) options(o *Options) {
	o.Now, o.Times, o.clockProbeInterval = k.now, k.times, 50*time.Millisecond
	o.MaxClockAhead = 24 * time.Hour // the test sets the clocks apart
}

// TestTimestampsWithDifferentClocks replicates between nodes whose wall clocks are 1 h apart and
// whose boot times are many hours apart.
func TestTimestampsWithDifferentClocks(t *testing.T) {
	begun := time.Now()
	clocks := []kernelClock{{begun, 30 * time.Hour, 0}, {begun, 2 * time.Hour, time.Hour}}
	s := schematest.Timed()
	var nodes []*node
	for i, k := range clocks {
		self := table.Owner{Node: string(rune('a' + i)), Incarnation: 1}
		n := startNode(t, self.Node, 1, nil, k.options)
		n.tb = newSizedTable(t, self, 8, s.Value.Size, false)
		n.addTyped("timed", s, nil, n.tb)
		nodes = append(nodes, n)
	}
	connectNodes(nodes...)
	for i, n := range nodes {
		poll.Within(t, deadline, "the clock offsets are measured", func() bool {
			_, p := n.status(nodes[1-i].self.Node, "timed")
			return p.RoundTrip > 0 && p.RoundTrip < 5*time.Millisecond
		})
	}
	const idle = 1234 * time.Second
	for i, n := range nodes {
		from, to := clocks[i], clocks[1-i]
		v := make([]byte, s.Value.Size)
		binary.LittleEndian.PutUint64(v, uint64(from.ktime()-int64(idle)))
		binary.LittleEndian.PutUint64(v[8:], uint64(from.ktime()+int64(time.Minute-idle)))
		binary.LittleEndian.PutUint64(v[16:], from.jiffies()-uint64(idle/4e6))
		n.tb.Update(func(tx *table.Tx) {
			tx.Local(&table.Change{Key: key(i), Value: v, Time: from.now().UnixNano()})
		})
		var got []byte
		poll.Within(t, deadline, "the records were received", func() bool {
			got = valueOf(nodes[1-i].tb, key(i))
			return got != nil
		})
		shift := to.boot - from.boot // between clocks that are read at the same moment
		for at, unit := range map[int]time.Duration{0: 1, 8: 1, 16: 4e6} {
			sent := time.Duration(binary.LittleEndian.Uint64(v[at:])) * unit
			came := time.Duration(binary.LittleEndian.Uint64(got[at:])) * unit
			if wrong := (came - sent - shift).Abs(); wrong > 10*time.Millisecond {
				t.Errorf("%s: time stamp at offset %d: got an error of %s, want at most %s", n.self.Node, at, wrong, 10*time.Millisecond)
			}
		}
		_, p := nodes[1-i].status(n.self.Node, "timed")
		if wrong := (p.ClockOffset - (from.wall - to.wall)).Abs(); wrong > 5*time.Millisecond || p.RoundTrip <= 0 {
			t.Errorf("%s: clock offset: got %s, round trip %s, want at most 5 ms from %s, and a round trip above 0",
				n.self.Node, p.ClockOffset, p.RoundTrip, from.wall-to.wall)
		}
	}
	// The measurement continues.
	taken := func() time.Time {
		nodes[0].r.mu.Lock()
		inbound := nodes[0].r.inboundStreams["b"]
		nodes[0].r.mu.Unlock()
		inbound.mu.Lock()
		defer inbound.mu.Unlock()
		if len(inbound.clock.pending) > 1 {
			t.Errorf("pending probes: got %d, want at most 1", len(inbound.clock.pending))
		}
		return inbound.clock.sampledAt
	}
	first := taken()
	poll.Within(t, deadline, "the clock offset was measured again", func() bool { return taken().After(first.Add(50 * time.Millisecond)) })
}
