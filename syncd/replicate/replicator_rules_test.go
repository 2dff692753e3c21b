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

// TestNumberOfMaps is bounded.
func TestNumberOfMaps(t *testing.T) {
	r, tb := newReceiver(t)
	all := make(map[string]*localMap)
	for i := range MaxMaps - 1 {
		all[fmt.Sprint(i)] = r.localMaps()[testMap]
	}
	r.maps.Store(&all)
	if err := r.AddMap("last", testLayout, tb); err != nil || len(r.localMaps()) != MaxMaps {
		t.Fatalf("map %d: %v", MaxMaps, err)
	}
	err := r.AddMap("one more", testLayout, tb)
	if !errors.Is(err, ErrMap) || !strings.Contains(err.Error(), `add map "one more" as number 65`) || len(r.localMaps()) != MaxMaps {
		t.Errorf("%v", err)
	}
	err = r.AddMap("last", testLayout, tb)
	if !errors.Is(err, ErrMap) || !strings.Contains(err.Error(), `add map "last" a second time`) {
		t.Errorf("%v", err)
	}
}

// TestMapsThatAreRefused leave no trace.
func TestMapsThatAreRefused(t *testing.T) {
	r, tb := newReceiver(t)
	woken(r.wake)
	foreign := newTable(t, table.Owner{Node: "b", Incarnation: 3}, false)
	for want, err := range map[string]error{
		"the table of another node":          r.AddMap("m", testLayout, foreign),
		"with 9+16 bytes on a table of 8+16": r.AddMap("m", Layout{KeySize: 9, ValueSize: 16}, tb),
		"with 8+15 bytes on a table of 8+16": r.AddMap("m", Layout{KeySize: 8, ValueSize: 15}, tb),
		"node name of 256 bytes":             r.AddMap(strings.Repeat("m", 256), testLayout, tb),
	} {
		if !errors.Is(err, ErrMap) || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got: %v", want, err)
		}
	}
	if len(r.localMaps()) != 1 || woken(r.wake) {
		t.Errorf("%d maps", len(r.localMaps()))
	}
}

// TestGenerationsOfMaps increase, also while the clock stands still or runs back.
func TestGenerationsOfMaps(t *testing.T) {
	r, _ := newReceiver(t)
	r.serial = 0
	at := uint64(at1000.UnixNano())
	for i, c := range []struct {
		clock time.Duration
		want  uint64
	}{{0, at}, {0, at + 1}, {-time.Minute, at + 2}, {2, at + 3}, {5, at + 5}} {
		r.opt.Now = func() time.Time { return at1000.Add(c.clock) }
		name := fmt.Sprint(i)
		if err := r.AddMap(name, testLayout, newTable(t, r.opt.Self, false)); err != nil {
			t.Fatal(err)
		}
		if got := r.localMaps()[name].generation; got != c.want {
			t.Errorf("generation %d of map %d, want %d", got, i, c.want)
		}
	}
}

// TestChangesOfMapsWake the replicator, its links and its sessions.
func TestChangesOfMapsWake(t *testing.T) {
	r, tb := newReceiver(t)
	l, s := newLink(r, peerX(5)), newSession(r, target, nil)
	r.links["x"], r.sessions[s] = l, struct{}{}
	for name, change := range map[string]func(){
		"added":   func() { _ = r.AddMap("m", testLayout, tb) },
		"removed": func() { r.RemoveMap(testMap) },
	} {
		for _, ch := range []chan struct{}{r.wake, l.wake, s.wake} {
			woken(ch)
		}
		change()
		if a, b, c := woken(r.wake), woken(l.wake), woken(s.wake); !a || !b || !c {
			t.Errorf("%s: woken: replicator %t, link %t, session %t", name, a, b, c)
		}
	}
	if r.localMaps()[testMap] != nil || r.localMaps()["m"] == nil {
		t.Errorf("%v", r.localMaps())
	}
}

// TestReviewsOfOwners are due once a second, UnknownGrace after the first membership.
func TestReviewsOfOwners(t *testing.T) {
	const never = -1
	for name, c := range map[string]struct {
		known, reviewed time.Duration // ago
		due             bool
	}{
		"no membership":       {never, never, false},
		"at the grace":        {time.Minute, never, false},
		"after the grace":     {time.Minute + 1, never, true},
		"reviewed, too soon":  {time.Hour, reviewPause - 1, false},
		"reviewed, due again": {time.Hour, reviewPause, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, tb := newReceiver(t)
			enterRemote(tb, table.Owner{Node: "z", Incarnation: 1}, 5, 1)
			ago := func(d time.Duration) time.Time {
				if d == never {
					return time.Time{}
				}
				return time.Now().Add(-d)
			}
			r.known, r.reviewed = ago(c.known), ago(c.reviewed)
			if r.keepHouse(); r.gone["z"] != c.due || c.due != r.reviewed.Equal(time.Now()) {
				t.Errorf("%s: reviewed at %s, gone %t", name, r.reviewed, r.gone["z"])
			}
		})
	}
}

// TestHousekeeping samples the lag, forgets links and gives the ids of owners back.
func TestHousekeeping(t *testing.T) {
	r, tb := newReceiver(t)
	putTable(t, tb, 1, 3, 1)
	tb.Update(func(tx *table.Tx) { tx.Intern(table.Owner{Node: "z", Incarnation: 1}) })
	for i := range maxDeparted + 1 {
		l := newLink(r, Peer{Node: fmt.Sprint(i), Incarnation: 1})
		r.links[l.peer.Node] = l
	}
	m := r.localMaps()[testMap]
	if owners := m.owners(); len(owners) != 2 || owners[0] != "b" || owners[1] != "z" {
		t.Fatalf("owners %q", owners)
	}
	r.keepHouse()
	if len(m.samples) != 1 || m.samples[0].position != 2 {
		t.Errorf("samples %v", m.samples)
	}
	if owners := m.owners(); len(owners) != 1 || owners[0] != "b" {
		t.Errorf("owners %q", owners)
	}
	if len(r.links) != maxDeparted {
		t.Errorf("%d links", len(r.links))
	}
}

// TestRunKeepsStreams: Run starts a link to each live peer again when it has ended, and ends after all links.
func TestRunKeepsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, tb := newReceiver(t)
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
		if len(dialled) != 1 || dialled[0] != proofAddr || !r.links["x"].running() {
			t.Fatalf("dialled %q", dialled)
		}
		if err := r.Run(ctx); !errors.Is(err, ErrRunning) {
			t.Errorf("a second call: %v", err)
		}
		if len(r.localMaps()[testMap].samples) != 0 || tb.Stats().Audits != 0 {
			t.Error("housekeeping before its time")
		}
		r.SetPeers([]Peer{{Node: "x", Incarnation: 5, Addr: "192.0.2.2:1"}})
		synctest.Wait() // without any time passing
		if len(dialled) != 2 || dialled[1] != "192.0.2.2:1" {
			t.Errorf("dialled %q", dialled)
		}
		r.mu.Lock()
		r.goneAt["left"] = time.Now().Add(-2 * time.Hour)
		r.mu.Unlock()
		time.Sleep(housekeeping)
		synctest.Wait()
		if len(r.localMaps()[testMap].samples) != 1 || tb.Stats().Audits == 0 || len(r.goneAt) != 0 {
			t.Errorf("housekeeping: %d samples, %d audits, gone: %v", len(r.localMaps()[testMap].samples), tb.Stats().Audits, r.goneAt)
		}
		cancel()
		if err := <-ended; err != nil || r.links["x"].running() {
			t.Errorf("%v, the link runs: %t", err, r.links["x"].running())
		}
	})
}

// TestEndOfRun waits for what Run has started.
func TestEndOfRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newReceiver(t)
		ctx, cancel := context.WithCancel(t.Context())
		begun := time.Now()
		r.wg.Go(func() { time.Sleep(time.Minute) })
		l := newLink(r, peerX(5))
		stopped := false
		l.cancel = func() { stopped = true }
		r.links["x"] = l
		cancel()
		if err := r.Run(ctx); err != nil || !stopped || time.Since(begun) != time.Minute {
			t.Errorf("%v, stopped %t, after %s", err, stopped, time.Since(begun))
		}
	})
}
