package replicate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// outboundFixture is an outbound map stream of node b to node x, without a gRPC stream.
type outboundFixture struct {
	t    *testing.T
	r    *Replicator
	tb   *table.Table
	s    *outboundStream
	m    *outboundMap
	sent []*mapsyncv1.SubscribeResponse
	err  error // returned for the next message
	now  time.Time
}

func (o *outboundFixture) Send(m *mapsyncv1.SubscribeResponse) error {
	if o.err != nil {
		return o.err
	}
	o.sent = append(o.sent, m)
	return nil
}

func (o *outboundFixture) SendMsg(m any) error {
	out := m.(*wire.SentFrame)
	defer out.Free()
	if o.err != nil {
		return o.err
	}
	var r mapsyncv1.SubscribeResponse
	err := proto.Unmarshal(frameBytes(out), &r)
	o.sent = append(o.sent, &r)
	return err
}

// target is the peer of an outboundFixture.
var target = table.Owner{Node: "x", Incarnation: 3}

// newOutboundFixture returns the stream of a subscription to the map of a receiver. The changes
// apply to the subscription before it is sent.
func newOutboundFixture(t *testing.T, changes ...func(*mapsyncv1.MapSubscription)) *outboundFixture {
	t.Helper()
	r, tb := newTestReplicator(t)
	o := &outboundFixture{t: t, r: r, tb: tb, now: time.Now()}
	r.SetPeers([]Peer{{Node: "x", Incarnation: 3, Addr: "127.0.0.1:1"}, {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
	o.subscribe(changes...)
	return o
}

// subscribe starts a new stream in place of the last one, so much later that the peer may scan the table
// again.
func (o *outboundFixture) subscribe(changes ...func(*mapsyncv1.MapSubscription)) {
	o.t.Helper()
	if o.s != nil {
		o.now = o.now.Add(scanBurst * o.r.opt.digestInterval)
	}
	sub := subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})
	sub.Owners = &mapsyncv1.OwnerRequest{Serial: 1}
	for _, change := range changes {
		change(sub)
	}
	o.s = newOutboundStream(o.r, target, o)
	if err := o.s.subscribe(sub); err != nil {
		o.t.Fatalf("subscribe: got error %v, want nil", err)
	}
	o.m = o.s.maps[0]
	o.t.Cleanup(o.m.close)
}

// step sends at most one batch.
func (o *outboundFixture) step() (more bool) {
	o.t.Helper()
	more, err := o.m.step(o.r.localMaps()[testMap], o.now)
	if err != nil {
		o.t.Fatalf("step: got error %v, want nil", err)
	}
	return more
}

// sendPending sends everything that is left to send, and returns it.
func (o *outboundFixture) sendPending() []*mapsyncv1.SubscribeResponse {
	o.t.Helper()
	for range 1000 {
		if !o.step() {
			return o.takeSent()
		}
	}
	o.t.Fatal("send pending messages: got no end, want one after at most 1000 steps")
	return nil
}

// takeSent returns the messages sent since the last call.
func (o *outboundFixture) takeSent() []*mapsyncv1.SubscribeResponse {
	sent := o.sent
	o.sent = nil
	return sent
}

// addRemote adds records of another owner.
func (o *outboundFixture) addRemote(owner table.Owner, version table.Version, keys ...int) {
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

// keysIn returns the keys of all batches, and those of requested batches.
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

// kinds returns the kinds of messages as text, batches with their keys.
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

// expectSent compares the messages sent, without digests.
func (o *outboundFixture) expectSent(what, sent string) {
	o.t.Helper()
	got := slices.DeleteFunc(o.sendPending(), func(m *mapsyncv1.SubscribeResponse) bool { return m.GetDigest() != nil })
	if k := kinds(got); k != sent {
		o.t.Errorf("%s: sent: got %q, want %q", what, k, sent)
	}
}
