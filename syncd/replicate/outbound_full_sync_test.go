package replicate

import (
	"testing"

	"mapsync/syncd/table"
)

// TestUnversionedEntriesOfNewMap: a new map brings unversioned entries into a table that was sent before. A new stream marks no end
// before they are adopted, also after a change of access: the peer would take it for the absence of all records.
func TestUnversionedEntriesOfNewMap(t *testing.T) {
	for name, change := range map[string]func(o *outboundFixture) error{
		"the same access": func(*outboundFixture) error { return nil },
		"another access":  func(o *outboundFixture) error { return o.r.UpdateAccess(testMap) },
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutboundFixture(t)
			putTable(t, o.tb, 1, 2, 1)
			o.expectSent("before the new map", "from 0, [1] end, owners sent 1")
			o.tb.Update(func(tx *table.Tx) { tx.Load(key(2), value(1)) })
			if err := change(o); err != nil {
				t.Fatalf("change of access: got error %v, want nil", err)
			}
			o.subscribe()
			o.expectSent("entries not adopted", "from 0, owners sent 1")
			o.tb.Update(func(tx *table.Tx) { tx.Adopt(100) })
			o.expectSent("entries adopted", "[1 2] end")
		})
	}
}
