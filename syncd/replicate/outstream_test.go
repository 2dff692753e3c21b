package replicate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// outStream is an outbound map stream of node b to node x without a stream.
type outStream struct {
	t    *testing.T
	r    *Replicator
	tb   *table.Table
	s    *session
	f    *feed
	sent []*mapsyncv1.SubscribeResponse
	err  error // of the next message
	now  time.Time
}

func (o *outStream) Send(m *mapsyncv1.SubscribeResponse) error {
	if o.err != nil {
		return o.err
	}
	o.sent = append(o.sent, m)
	return nil
}

func (o *outStream) SendMsg(m any) error {
	out := m.(*outbound)
	defer out.data.Free()
	if o.err != nil {
		return o.err
	}
	var r mapsyncv1.SubscribeResponse
	err := proto.Unmarshal(flat(out), &r)
	o.sent = append(o.sent, &r)
	return err
}

// target is the peer of an outStream.
var target = table.Owner{Node: "x", Incarnation: 3}

// newOut returns the stream of a subscription to the map of a receiver. The changes are made
// to the subscription before it is sent.
func newOut(t *testing.T, changes ...func(*mapsyncv1.MapSubscription)) *outStream {
	t.Helper()
	r, tb := newReceiver(t)
	o := &outStream{t: t, r: r, tb: tb, now: time.Now()}
	r.SetPeers([]Peer{{Node: "x", Incarnation: 3, Addr: "127.0.0.1:1"}, {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
	o.subscribe(changes...)
	return o
}

// subscribe begins a new stream in the place of the last.
func (o *outStream) subscribe(changes ...func(*mapsyncv1.MapSubscription)) {
	o.t.Helper()
	sub := subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})
	sub.Owners = &mapsyncv1.OwnerRequest{Serial: 1}
	sub.Expiries = true
	for _, change := range changes {
		change(sub)
	}
	o.s = newSession(o.r, target, o)
	if err := o.s.subscribe(sub); err != nil {
		o.t.Fatal(err)
	}
	o.f = o.s.feeds[0]
	o.t.Cleanup(o.f.close)
}

// step sends at most one batch.
func (o *outStream) step() (more bool) {
	o.t.Helper()
	more, err := o.f.step(o.r.localMaps()[testMap], o.now)
	if err != nil {
		o.t.Fatal(err)
	}
	return more
}

// run sends all there is to send, and returns it.
func (o *outStream) run() []*mapsyncv1.SubscribeResponse {
	o.t.Helper()
	for range 1000 {
		if !o.step() {
			return o.took()
		}
	}
	o.t.Fatal("there is always more to send")
	return nil
}

// took returns what was sent since the last call.
func (o *outStream) took() []*mapsyncv1.SubscribeResponse {
	sent := o.sent
	o.sent = nil
	return sent
}

// remote enters a record of another owner.
func (o *outStream) remote(owner table.Owner, version table.Version, keys ...int) {
	enterRemote(o.tb, owner, version, keys...)
}

func enterRemote(tb *table.Table, owner table.Owner, version table.Version, keys ...int) {
	tb.Update(func(tx *table.Tx) {
		id := tx.Intern(owner)
		for _, k := range keys {
			tx.Remote(&table.Delta{Key: key(k), Value: value(k), Version: version, Owner: id}, 5, table.RemoteOptions{})
		}
	})
}

// keysIn returns the keys of the batches, and of the requested ones alone.
func keysIn(sent []*mapsyncv1.SubscribeResponse) (ordinary, requested []int) {
	byKey := make(map[string]int)
	for i := range 5000 {
		byKey[string(wireBytes(key(i)))] = i
	}
	for _, m := range sent {
		for _, d := range m.GetBatch().GetDeltas() {
			if m.GetBatch().GetRequested() {
				requested = append(requested, byKey[string(d.GetKey())])
			} else {
				ordinary = append(ordinary, byKey[string(d.GetKey())])
			}
		}
	}
	slices.Sort(ordinary)
	slices.Sort(requested)
	return ordinary, requested
}

// kinds names the messages, batches with their keys.
func kinds(sent []*mapsyncv1.SubscribeResponse) string {
	var all []string
	for _, m := range sent {
		switch m := m.GetMessage().(type) {
		case *mapsyncv1.SubscribeResponse_Batch:
			ordinary, requested := keysIn([]*mapsyncv1.SubscribeResponse{{Message: m}})
			kind := fmt.Sprint(ordinary)
			if m.Batch.GetRequested() {
				kind = fmt.Sprint("requested", requested)
			}
			if m.Batch.GetCaughtUp() {
				kind += " end"
			}
			all = append(all, kind)
		case *mapsyncv1.SubscribeResponse_OwnersSent:
			all = append(all, fmt.Sprint("owners sent ", m.OwnersSent.GetSerial()))
		case *mapsyncv1.SubscribeResponse_Sources:
			all = append(all, fmt.Sprint("sources ", m.Sources.GetNodes()))
		case *mapsyncv1.SubscribeResponse_Accepted:
			kind := "resumed"
			if m.Accepted.GetReset_() {
				kind = "from 0"
			}
			all = append(all, kind)
		case *mapsyncv1.SubscribeResponse_Ended:
			all = append(all, m.Ended.GetReason().String())
		case *mapsyncv1.SubscribeResponse_Digest:
			all = append(all, "digest")
		default:
			all = append(all, strings.TrimPrefix(fmt.Sprintf("%T", m), "*mapsyncv1.SubscribeResponse_"))
		}
	}
	return strings.Join(all, ", ")
}

// want compares what was sent, digests left out.
func (o *outStream) want(what, sent string) {
	o.t.Helper()
	got := slices.DeleteFunc(o.run(), func(m *mapsyncv1.SubscribeResponse) bool { return m.GetDigest() != nil })
	if k := kinds(got); k != sent {
		o.t.Errorf("%s: sent %q, expected %q", what, k, sent)
	}
}
