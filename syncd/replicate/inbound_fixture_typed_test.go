package replicate

import (
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// newTypedInboundFixture is newInboundFixture for a map with a schema, which the peer may have in another
// version.
func newTypedInboundFixture(t *testing.T, here, there *schema.Schema, links schema.Links) *inboundFixture {
	t.Helper()
	x := newInboundFixture(t)
	x.r.RemoveMap(testMap)
	x.tb = newSizedTable(t, x.r.opt.Self, here.Key.Size, here.Value.Size, false)
	if err := x.r.AddMap(testMap, Layout{KeySize: here.Key.Size, ValueSize: here.Value.Size, Schema: here, Links: links}, x.tb); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	x.stream.appendSubscriptions(nil, x.r.localMaps(), time.Now())
	x.in = x.stream.maps[testMap]
	if err := x.in.accept(&mapsyncv1.MapAccepted{Map: x.in.index, Generation: 1, Reset_: true, Schema: wire.SchemaToProto(there)}); err != nil {
		t.Fatalf("accept map: got error %v, want nil", err)
	}
	return x
}

// TestOtherSchemaComparesVersionsOnly checks that the values of two schemas are not compared, although
// the digests cover the same fields.
func TestOtherSchemaComparesVersionsOnly(t *testing.T) {
	x := newTypedInboundFixture(t, schematest.OldVersion(), schematest.NewVersion(), nil)
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.Nodes[0].Sum++ })
	if s := x.r.Stats(); !x.in.comparison.inSync || s.DigestsDivergent != 0 {
		t.Errorf("equal version sums: got in sync %t, %d divergent digests, want true and 0", x.in.comparison.inSync, s.DigestsDivergent)
	}
}

// TestOrphanedComparisonExcludesUnsentRecords checks that an orphaned record that this node cannot send
// does not count as a difference: the peer cannot have it.
func TestOrphanedComparisonExcludesUnsentRecords(t *testing.T) {
	x := newTypedInboundFixture(t, schematest.OldVersion(), schematest.OldVersion(), nil)
	x.stream.supportsOwnerRequests = true
	x.in.m.requestsComplete.Store(true)
	k := flow(1)
	k[7] = 1 // the padding of the key is not zero
	z := table.Owner{Node: "z", Incarnation: 1}
	x.tb.Update(func(tx *table.Tx) {
		tx.Remote(&table.Delta{Key: k, Value: ct{Packets: 1}.old(), Version: 5, Owner: tx.Intern(z)}, 5, table.RemoteOptions{})
	})
	x.in.m.unsent.add(k, 5, z, errGap)
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) {
		m.MembersFingerprint, m.Orphaned = x.r.view.Load().members, &mapsyncv1.NodeDigest{}
	})
	if c := &x.in.comparison; !c.inSync {
		t.Errorf("digest without the record: got in sync false, reason %q, want true", c.incomparableReason())
	}
}

// TestExceptionsAreNotUnrepaired checks that a repair does not count records that this node's map cannot
// hold as unrepaired: comparisons leave them out.
func TestExceptionsAreNotUnrepaired(t *testing.T) {
	there := &testInterfaces{names: []string{"eth0", "eth1"}}
	for name, test := range map[string]struct {
		here, there *schema.Schema
		key, value  []byte // in the layout of the peer
	}{
		"out of range":         {schematest.OldVersion(), schematest.NewVersion(), flow(1), ct{Packets: 1 << 40}.new()},
		"without an interface": {schematest.InterfaceKey(), schematest.InterfaceKey(), []byte{2, 0, 0, 0}, make([]byte, schematest.InterfaceKey().Value.Size)},
	} {
		x := newTypedInboundFixture(t, test.here, test.there, &testInterfaces{names: []string{"eth0"}})
		enc, err := schema.NewEncoder(test.there, there)
		if err != nil {
			t.Fatalf("new encoder: got error %v, want nil", err)
		}
		encoded, err := enc.AppendKey(nil, test.key)
		if err != nil {
			t.Fatalf("encode key: got error %v, want nil", err)
		}
		x.beginResend(nil)
		m := x.resentBatch()
		m.GetBatch().Deltas = []*mapsyncv1.Delta{{
			Key: encoded, Version: 5, Operation: mapsyncv1.Operation_OPERATION_UPDATE, Value: enc.AppendValue(nil, nil, test.value, &schema.Times{}),
		}}
		x.handle(m)
		if j := x.in.comparison.resend; x.in.exceptions.count() != 1 || j.unrepaired != 0 {
			t.Errorf("%s: got %d exceptions, %d unrepaired, want 1 and 0", name, x.in.exceptions.count(), j.unrepaired)
		}
	}
}
