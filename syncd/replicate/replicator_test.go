package replicate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"mapsync/syncd/table"
)

var testLayout = Layout{KeySize: testKeySize, ValueSize: testValueSize}

// TestMaxMaps adds more than MaxMaps maps.
func TestMaxMaps(t *testing.T) {
	r, tb := newTestReplicator(t)
	all := make(map[string]*localMap)
	for i := range MaxMaps - 1 {
		all[fmt.Sprint(i)] = r.localMaps()[testMap]
	}
	r.maps.Store(&all)
	if err := r.AddMap("last", testLayout, tb); err != nil || len(r.localMaps()) != MaxMaps {
		t.Fatalf("map %d: got %v, want no error and %d maps", MaxMaps, err, MaxMaps)
	}
	err := r.AddMap("one-more", testLayout, tb)
	if !errors.Is(err, ErrMap) || !strings.Contains(err.Error(), `add map "one-more" as number 1025`) || len(r.localMaps()) != MaxMaps {
		t.Errorf("map above the maximum: got %v, want ErrMap", err)
	}
	err = r.AddMap("last", testLayout, tb)
	if !errors.Is(err, ErrMap) || !strings.Contains(err.Error(), `add map "last" a second time`) {
		t.Errorf("map with a used name: got %v, want ErrMap", err)
	}
}

// TestNextRound checks that rounds take at most a quarter of the time.
func TestNextRound(t *testing.T) {
	begun := time.Now()
	for took, want := range map[time.Duration]time.Duration{
		0:                    minRoundInterval,
		minRoundInterval / 4: minRoundInterval,
		minRoundInterval:     4 * minRoundInterval,
		time.Second:          4 * time.Second,
	} {
		if got := nextRound(begun, begun.Add(took)).Sub(begun); got != want {
			t.Errorf("next round after one of %s: got %s, want %s", took, got, want)
		}
	}
}

// TestWakeUpsAreLimited wakes Run all the time, as a peer can with its messages. It still runs at most one
// round in minRoundInterval. A single wake-up is answered at once.
func TestWakeUpsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newTestReplicator(t)
		r.Discover(nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		rounds, last := 0, time.Time{}
		wake := func() {
			poke(r.wake)
			synctest.Wait()
			r.verifier.mu.Lock()
			if now := r.verifier.lastStep; now != last {
				rounds, last = rounds+1, now
			}
			r.verifier.mu.Unlock()
		}
		wake()
		time.Sleep(housekeepingInterval / 2)
		if wake(); rounds != 2 {
			t.Errorf("wake-up after a pause: got %d rounds, want the second", rounds)
		}
		rounds = 0
		for range 1000 {
			time.Sleep(minRoundInterval / 100)
			wake()
		}
		if rounds < 9 || rounds > 11 {
			t.Errorf("1,000 wake-ups in 10 intervals: got %d rounds, want about 10", rounds)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: got %v, want no error", err)
		}
	})
}

// TestRefusedMapChangesNothing checks that a refused map changes nothing. The keys of the table are
// parts of the errors.
func TestRefusedMapChangesNothing(t *testing.T) {
	r, tb := newTestReplicator(t)
	wasWoken(r.wake)
	foreign := newTable(t, table.Owner{Node: "b", Incarnation: 3}, false)
	for want, err := range map[string]error{
		"the table of another node":          r.AddMap("m", testLayout, foreign),
		"with 9+16 bytes on a table of 8+16": r.AddMap("m", Layout{KeySize: 9, ValueSize: 16}, tb),
		"with 8+15 bytes on a table of 8+16": r.AddMap("m", Layout{KeySize: 8, ValueSize: 15}, tb),
		"of 256 bytes: malformed":            r.AddMap(strings.Repeat("m", 256), testLayout, tb),
	} {
		if !errors.Is(err, ErrMap) || !strings.Contains(err.Error(), want) {
			t.Errorf("add map: want error %q, got: %v", want, err)
		}
	}
	if len(r.localMaps()) != 1 || wasWoken(r.wake) {
		t.Errorf("maps: got %d, want 1", len(r.localMaps()))
	}
}

// TestMapGenerations checks that generations increase, also while the clock does not advance or
// is set back.
func TestMapGenerations(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.lastGeneration = 0
	at := uint64(at1000.UnixNano())
	for i, c := range []struct {
		clock time.Duration
		want  uint64
	}{{0, at}, {0, at + 1}, {-time.Minute, at + 2}, {2, at + 3}, {5, at + 5}} {
		r.opt.Now = func() time.Time { return at1000.Add(c.clock) }
		name := fmt.Sprint(i)
		if err := r.AddMap(name, testLayout, newTable(t, r.opt.Self, false)); err != nil {
			t.Fatalf("add map: got error %v, want nil", err)
		}
		if got := r.localMaps()[name].generation; got != c.want {
			t.Errorf("generation: got %d for map %d, want %d", got, i, c.want)
		}
	}
}

// TestMapChangeWakesStreams checks that an added or removed map wakes Run and all streams.
func TestMapChangeWakesStreams(t *testing.T) {
	r, tb := newTestReplicator(t)
	inbound, s := newInboundStream(r, peerX(5)), newOutboundStream(r, target, nil)
	r.inboundStreams["x"], r.outboundStreams[s] = inbound, struct{}{}
	for name, change := range map[string]func(){
		"added":   func() { _ = r.AddMap("m", testLayout, tb) },
		"removed": func() { r.RemoveMap(testMap) },
	} {
		for _, ch := range []chan struct{}{r.wake, inbound.wake, s.wake} {
			wasWoken(ch)
		}
		change()
		if a, b, c := wasWoken(r.wake), wasWoken(inbound.wake), wasWoken(s.wake); !a || !b || !c {
			t.Errorf("%s: woken: got replicator %t, inbound stream %t, outbound stream %t, want true, true, true", name, a, b, c)
		}
	}
	if r.localMaps()[testMap] != nil || r.localMaps()["m"] == nil {
		t.Errorf("maps: got %v, want m, and not %s", r.localMaps(), testMap)
	}
}

// TestOwnerReviewInterval checks that reviews begin UnknownGrace after the first SetPeers and take
// place once a second.
func TestOwnerReviewInterval(t *testing.T) {
	const never = -1
	for name, c := range map[string]struct {
		known, reviewed time.Duration // time since the event
		due             bool
	}{
		"no SetPeers":                 {never, never, false},
		"at the end of UnknownGrace":  {time.Minute, never, false},
		"after UnknownGrace":          {time.Minute + 1, never, true},
		"before the interval is over": {time.Hour, ownerReviewInterval - 1, false},
		"after the interval":          {time.Hour, ownerReviewInterval, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, tb := newTestReplicator(t)
			enterRemote(tb, table.Owner{Node: "z", Incarnation: 1}, 5, 1)
			ago := func(d time.Duration) time.Time {
				if d == never {
					return time.Time{}
				}
				return time.Now().Add(-d)
			}
			r.membershipSince, r.ownersReviewedAt = ago(c.known), ago(c.reviewed)
			if r.doHousekeeping(); r.gone["z"] != c.due || c.due != r.ownersReviewedAt.Equal(time.Now()) {
				t.Errorf("%s: got reviewed at %s, gone %t, want reviewed now: %t, gone: %t",
					name, r.ownersReviewedAt, r.gone["z"], c.due, c.due)
			}
		})
	}
}

// TestHousekeeping checks that housekeeping samples the lag, forgets inbound streams and reclaims
// the ids of owners.
func TestHousekeeping(t *testing.T) {
	r, tb := newTestReplicator(t)
	putTable(t, tb, 1, 3, 1)
	tb.Update(func(tx *table.Tx) { tx.Intern(table.Owner{Node: "z", Incarnation: 1}) })
	for i := range maxDeparted + 1 {
		s := newInboundStream(r, Peer{Node: fmt.Sprint(i), Incarnation: 1})
		r.inboundStreams[s.peer.Node] = s
	}
	m := r.localMaps()[testMap]
	if owners := m.owners(); len(owners) != 2 || owners[0] != "b" || owners[1] != "z" {
		t.Fatalf("owners: got %q, want b and z", owners)
	}
	r.doHousekeeping()
	if len(m.samples) != 1 || m.samples[0].position != 2 {
		t.Errorf("samples: got %v, want one at position 2", m.samples)
	}
	if owners := m.owners(); len(owners) != 1 || owners[0] != "b" {
		t.Errorf("owners after housekeeping: got %q, want b", owners)
	}
	if len(r.inboundStreams) != maxDeparted {
		t.Errorf("inbound streams: got %d, want maxDeparted", len(r.inboundStreams))
	}
}

// TestRunRestartsInboundStreams checks that Run restarts the inbound stream of a live peer when it
// has ended, and that Run ends after all streams.
func TestRunRestartsInboundStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, tb := newTestReplicator(t)
		putTable(t, tb, 1, 3, 1)
		var dialled []string
		r.opt.Dial = func(p Peer) (*grpc.ClientConn, error) {
			dialled = append(dialled, p.Addr)
			return nil, errRefusedHere
		}
		r.opt.MinBackoff, r.opt.MaxBackoff = time.Hour, time.Hour
		r.SetPeers([]Peer{peerX(5)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		synctest.Wait()
		if len(dialled) != 1 || dialled[0] != verifyAddr || !r.inboundStreams["x"].running() {
			t.Fatalf("dialled: got %q, want the address of peer x", dialled)
		}
		if err := r.Run(ctx); !errors.Is(err, ErrRunning) {
			t.Errorf("second call of Run: got %v, want ErrRunning", err)
		}
		if len(r.localMaps()[testMap].samples) != 0 || tb.Stats().Audits != 0 {
			t.Error("housekeeping before its time: got a sample or an audit, want neither")
		}
		r.SetPeers([]Peer{{Node: "x", Incarnation: 5, Addr: "192.0.2.2:1"}})
		time.Sleep(minRoundInterval) // not the next housekeeping
		synctest.Wait()
		if len(dialled) != 2 || dialled[1] != "192.0.2.2:1" {
			t.Errorf("dialled: got %q, want the new address, too", dialled)
		}
		r.mu.Lock()
		r.goneAt["left"] = time.Now().Add(-2 * time.Hour)
		r.mu.Unlock()
		time.Sleep(housekeepingInterval)
		synctest.Wait()
		if len(r.localMaps()[testMap].samples) != 1 || tb.Stats().Audits == 0 || len(r.goneAt) != 0 {
			t.Errorf("housekeeping: got %d samples, %d audits, departures %v, want 1, at least 1 and none",
				len(r.localMaps()[testMap].samples), tb.Stats().Audits, r.goneAt)
		}
		cancel()
		if err := <-ended; err != nil || r.inboundStreams["x"].running() {
			t.Errorf("end of Run: got %v, inbound stream running: %t, want no error and false", err, r.inboundStreams["x"].running())
		}
	})
}

// TestRunWaitsForGoroutines checks that Run waits for the goroutines that it has started.
func TestRunWaitsForGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newTestReplicator(t)
		ctx, cancel := context.WithCancel(t.Context())
		begun := time.Now()
		r.wg.Go(func() { time.Sleep(time.Minute) })
		s := newInboundStream(r, peerX(5))
		stopped := false
		s.cancel = func() { stopped = true }
		r.inboundStreams["x"] = s
		cancel()
		if err := r.Run(ctx); err != nil || !stopped || time.Since(begun) != time.Minute {
			t.Errorf("end of Run: got %v, stopped %t, after %s, want nil, true, %s", err, stopped, time.Since(begun), time.Minute)
		}
	})
}

// TestOptions checks invalid options and defaults.
func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"no name":    {Dial: noDial},
		"no dialler": {Self: table.Owner{Node: "a"}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: got no error, want ErrOptions", name)
		}
	}
	r, err := New(Options{Self: table.Owner{Node: "a"}, Dial: noDial})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	if ok, waiting := r.InitialSyncDone(); ok || len(waiting) != 1 {
		t.Errorf("initial sync without membership: got done %t, waiting %v, want false and one entry", ok, waiting)
	}
	if r.opt.MaxClockAhead != DefaultMaxClockAhead {
		t.Errorf("default of MaxClockAhead: got %s, want %s", r.opt.MaxClockAhead, DefaultMaxClockAhead)
	}
}
