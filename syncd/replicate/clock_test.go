package replicate

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// TestPeerClockKeepsTheBestSample has a peer an hour ahead, whose clock drifts and
// whose replies now and then wait behind something in one direction.
func TestPeerClockKeepsTheBestSample(t *testing.T) {
	const drift = 20e-6
	var c peerClock
	rnd := rand.New(rand.NewPCG(1, 2))
	begun := time.Now()
	theirs := func(at time.Duration) time.Duration { return time.Hour + at + time.Duration(drift*float64(at)) }
	for i := range 500 {
		at := time.Duration(i) * 5 * time.Second
		there, back := 100*time.Microsecond, 100*time.Microsecond
		if i >= firstProbes && rnd.IntN(3) > 0 {
			back += time.Duration(rnd.IntN(int(time.Second)))
		}
		kept := time.Duration(rnd.IntN(int(10 * time.Millisecond)))
		m := c.ask(begun.Add(at)).GetClockProbe()
		c.probes[0].at = begun.Add(at)
		received := at + there
		end := received + kept + back
		err := c.answered(&mapsyncv1.ClockReply{
			ProbeSent: m.GetSent(), Received: uint64(theirs(received)), Clock: uint64(theirs(received + kept)),
		}, time.Unix(0, int64(end)), begun.Add(end))
		if err != nil {
			t.Fatal(err)
		}
		if wrong := (c.offset - (theirs(end) - end)).Abs(); wrong > 2*time.Millisecond {
			t.Fatalf("after %s wrong by %s, by a sample of %s with a round trip of %s", end, wrong, begun.Add(end).Sub(c.taken), c.roundTrip)
		}
	}
}

func TestPeerClockFollowsOneThatIsSet(t *testing.T) {
	var c peerClock
	now := time.Now()
	c.sample(time.Hour, 100*time.Microsecond, now)
	c.sample(time.Hour+400*time.Microsecond, time.Millisecond, now.Add(time.Second))
	if c.offset != time.Hour {
		t.Errorf("a worse sample counts: %s", c.offset)
	}
	c.sample(2*time.Hour, 10*time.Millisecond, now.Add(2*time.Second))
	if c.offset != 2*time.Hour {
		t.Errorf("a clock that was set is not believed: %s", c.offset)
	}
}

func TestLyingClocks(t *testing.T) {
	for name, lie := range map[string]func(*mapsyncv1.ClockReply){
		"unknown probe":        func(m *mapsyncv1.ClockReply) { m.ProbeSent++ },
		"absurd clock":         func(m *mapsyncv1.ClockReply) { m.Clock = math.MaxUint64 },
		"sent before received": func(m *mapsyncv1.ClockReply) { m.Received = m.Clock + 1 },
	} {
		var c peerClock
		sent := c.ask(time.Now()).GetClockProbe().GetSent()
		m := &mapsyncv1.ClockReply{ProbeSent: sent, Received: 5, Clock: 5}
		lie(m)
		if err := c.answered(m, time.Now(), time.Now()); !errors.Is(err, errProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		if c.known {
			t.Errorf("%s: believed", name)
		}
	}
	var c peerClock
	sent := c.ask(time.Now()).GetClockProbe().GetSent()
	// It cannot have kept the probe for longer than the answer took.
	if err := c.answered(&mapsyncv1.ClockReply{ProbeSent: sent, Clock: 1 << 60}, time.Now(), time.Now()); err != nil || c.known {
		t.Errorf("impossible sample: %v, believed: %v", err, c.known)
	}
	for range maxProbes {
		c.ask(time.Unix(0, 5))
	}
	if m := c.ask(time.Now()); m != nil || len(c.probes) != maxProbes {
		t.Errorf("%d probes under way", len(c.probes))
	}
	for i := range c.probes[1:] {
		if c.probes[i+1].sent <= c.probes[i].sent {
			t.Error("two probes cannot be told apart")
		}
	}
}

func TestProbesAreBounded(t *testing.T) {
	r, _ := fuzzReplicator(t)
	s := newSession(r, table.Owner{Node: "x", Incarnation: 1}, &discard{responder: nowhere{}})
	ask := &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_ClockProbe{ClockProbe: &mapsyncv1.ClockProbe{}}}
	for range 3 {
		for i := range maxProbes {
			if err := s.handle(ask); err != nil {
				t.Fatalf("probe %d: %v", i, err)
			}
		}
		if err := s.handle(ask); !errors.Is(err, errProtocol) {
			t.Errorf("one probe too many: %v", err)
		}
		if err := s.answer(); err != nil {
			t.Fatal(err)
		}
	}
}

// kernelClock is a machine that was booted at some time.
type kernelClock struct {
	begun      time.Time
	boot, wall time.Duration // ahead of what the other machines have
}

func (k kernelClock) now() time.Time { return time.Now().Add(k.wall) }

func (k kernelClock) ktime() int64 { return int64(time.Since(k.begun) + k.boot) }

func (k kernelClock) jiffies() uint64 { return uint64(k.ktime() / 4e6) }

func (k kernelClock) times() schema.Times {
	both := time.Now() // has the wall clock and the monotonic one, of one moment
	now, ktime := both.Add(k.wall).UnixNano(), int64(both.Sub(k.begun)+k.boot)
	return schema.Times{
		Ktime: now - ktime, Boottime: now - ktime - int64(time.Minute), // asleep for a minute
		Jiffies: uint64(ktime / 4e6), JiffiesAt: now - ktime%4e6, Tick: 4e6,
	}
}

func (k kernelClock) options(o *Options) {
	o.Now, o.Times, o.probe = k.now, k.times, 50*time.Millisecond
	o.MaxClockAhead = 24 * time.Hour // the clocks are apart on purpose
}

// TestIdleTimesAreKept has wall clocks an hour and boots many hours apart.
func TestIdleTimesAreKept(t *testing.T) {
	begun := time.Now()
	clocks := []kernelClock{{begun, 30 * time.Hour, 0}, {begun, 2 * time.Hour, time.Hour}}
	s := timeSchema()
	var nodes []*node
	for i, k := range clocks {
		self := table.Owner{Node: string(rune('a' + i)), Incarnation: 1}
		n := startNode(t, self.Node, 1, nil, k.options)
		n.tb = newSizedTable(t, self, 8, s.Value.Size, false)
		n.addTyped("timed", s, nil, n.tb)
		nodes = append(nodes, n)
	}
	meet(nodes...)
	for i, n := range nodes {
		eventually(t, "the clocks are known", func() bool {
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
		eventually(t, "received", func() bool {
			got = valueOf(nodes[1-i].tb, key(i))
			return got != nil
		})
		shift := to.boot - from.boot // of clocks that are read at the same moment
		for at, unit := range map[int]time.Duration{0: 1, 8: 1, 16: 4e6} {
			sent := time.Duration(binary.LittleEndian.Uint64(v[at:])) * unit
			came := time.Duration(binary.LittleEndian.Uint64(got[at:])) * unit
			if wrong := (came - sent - shift).Abs(); wrong > 10*time.Millisecond {
				t.Errorf("%s: time stamp at %d is wrong by %s", n.self.Node, at, wrong)
			}
		}
		_, p := nodes[1-i].status(n.self.Node, "timed")
		if wrong := (p.ClockOffset - (from.wall - to.wall)).Abs(); wrong > 5*time.Millisecond || p.RoundTrip <= 0 {
			t.Errorf("clock of %s is %s ahead, measured in %s", n.self.Node, p.ClockOffset, p.RoundTrip)
		}
	}
	// And it goes on to be measured.
	taken := func() time.Time {
		nodes[0].r.mu.Lock()
		l := nodes[0].r.links["b"]
		nodes[0].r.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.clock.probes) > 1 {
			t.Errorf("%d probes under way", len(l.clock.probes))
		}
		return l.clock.taken
	}
	first := taken()
	eventually(t, "measured again", func() bool { return taken().After(first.Add(50 * time.Millisecond)) })
}
