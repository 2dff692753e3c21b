package replicate

import (
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// TestPositionThatAllHaveAcknowledged is the rule of when a tombstone may be forgotten early.
func TestPositionThatAllHaveAcknowledged(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		change func(v *ackView, x, c *feed)
		want   uint64
	}{
		"all acknowledge":            {func(*ackView, *feed, *feed) {}, 10},
		"the slower one counts":      {func(_ *ackView, _, c *feed) { c.acked.Store(7) }, 7},
		"whichever it is":            {func(_ *ackView, x, _ *feed) { x.acked.Store(7) }, 7},
		"not served yet":             {func(_ *ackView, _, c *feed) { c.serving.Store(false) }, 0},
		"no stream":                  {func(v *ackView, _, _ *feed) { v.sessions = v.sessions[:1] }, 0},
		"no subscription, new":       {func(_ *ackView, _, c *feed) { c.unwanted.Store(true) }, 0},
		"of another map, new":        {func(_ *ackView, _, c *feed) { c.name = "other" }, 0},
		"no subscription for long":   {func(v *ackView, _, c *feed) { c.unwanted.Store(true); v.now = now.Add(subscribeGrace + 1) }, 10},
		"no subscription for a time": {func(v *ackView, _, c *feed) { c.unwanted.Store(true); v.now = now.Add(subscribeGrace) }, 0},
		"pending for long":           {func(v *ackView, _, c *feed) { c.serving.Store(false); v.now = now.Add(time.Hour / 2) }, 0},
		"an earlier incarnation":     {func(v *ackView, _, c *feed) { c.s.target.Incarnation-- }, 0},
		"another has left":           {func(v *ackView, _, c *feed) { c.acked.Store(3); delete(v.live, "c") }, 10},
		"an observer is sent more":   {func(_ *ackView, _, c *feed) { observes(c, 20) }, 0},
		"no peer is live":            {func(v *ackView, _, _ *feed) { clear(v.live) }, 1<<64 - 1},
		"membership is unknown":      {func(v *ackView, _, _ *feed) { v.known = time.Time{} }, 0},
		"a node left":                {func(v *ackView, _, _ *feed) { v.goneAt["z"] = now }, 0},
		"a node left just in time":   {func(v *ackView, _, _ *feed) { v.goneAt["z"] = now.Add(1 - time.Hour) }, 0},
		"a node left long ago":       {func(v *ackView, _, _ *feed) { v.goneAt["z"] = now.Add(-time.Hour) }, 10},
		"a stranger was found":       {func(v *ackView, _, _ *feed) { v.stranger = now.Add(1 - time.Hour) }, 0},
		"a stranger, long ago":       {func(v *ackView, _, _ *feed) { v.stranger = now.Add(-time.Hour) }, 10},
		"one never came":             {func(v *ackView, _, _ *feed) { v.expected = 3 }, 0},
		"one never came, in time":    {func(v *ackView, _, _ *feed) { v.expected, v.known = 3, now.Add(1-time.Hour) }, 0},
		"one never came for long":    {func(v *ackView, _, _ *feed) { v.expected, v.known = 3, now.Add(-time.Hour) }, 10},
		"as many as are expected":    {func(v *ackView, _, _ *feed) { v.expected = 2 }, 10},
	} {
		r, _ := newReceiver(t)
		m := r.localMaps()[testMap]
		v := &ackView{now: now, live: map[string]Peer{}, goneAt: map[string]time.Time{}, known: now}
		var feeds []*feed
		for _, owner := range []Peer{{Node: "x", Incarnation: 3}, {Node: "c", Incarnation: 9}} {
			s := newSession(r, owner.owner(), nil)
			s.begun = now
			f := newFeed(s, &mapsyncv1.MapSubscription{Map: 1, Name: testMap}, allOrphaned)
			f.serving.Store(true)
			f.acked.Store(10)
			s.feeds = []*feed{f}
			v.live[owner.Node], v.sessions, feeds = owner, append(v.sessions, s), append(feeds, f)
		}
		c.change(v, feeds[0], feeds[1])
		if got := v.position(m); got != c.want {
			t.Errorf("%s: position %d, want %d", name, got, c.want)
		}
	}
}

// observes makes a feed one of an observer, which acknowledges nothing.
func observes(f *feed, sent uint64) {
	f.observe = true
	f.acked.Store(0)
	f.sent.Store(sent)
}

// TestObserversHoldPositionsBack: an observer counts as far as it was sent, and not before it is
// served.
func TestObserversHoldPositionsBack(t *testing.T) {
	r, _ := newReceiver(t)
	m := r.localMaps()[testMap]
	s := newSession(r, target, nil)
	f := newFeed(s, &mapsyncv1.MapSubscription{Map: 1, Name: testMap, Observe: true}, allOrphaned)
	s.feeds = []*feed{f}
	observes(f, 6)
	v := &ackView{now: time.Now(), known: time.Now(), sessions: []*session{s}}
	if p := v.position(m); p != 1<<64-1 {
		t.Errorf("an observer that is not served holds position %d", p)
	}
	f.serving.Store(true)
	if p := v.position(m); p != 6 {
		t.Errorf("an observer that was sent 6 holds position %d", p)
	}
}

// TestDeparturesAreForgotten: when a node left is remembered for as long as the tombstone of any map
// may live.
func TestDeparturesAreForgotten(t *testing.T) {
	r, tb := newReceiver(t)
	now := time.Now()
	r.known = now
	r.goneAt["z"], r.goneAt["y"] = now.Add(-tb.TombstoneTTL()), now.Add(1-tb.TombstoneTTL())
	v := r.ackView(now)
	if _, ok := r.goneAt["z"]; ok || len(r.goneAt) != 1 {
		t.Errorf("departures %v", r.goneAt)
	}
	if len(v.goneAt) != 1 || v.position(r.localMaps()[testMap]) != 0 {
		t.Errorf("%v", v.goneAt)
	}
}
