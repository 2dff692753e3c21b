package daemon

import (
	"context"

	"mapsync/syncd/kmap"
	"mapsync/syncd/table"
)

// load reads the content of the kernel map into the table and returns the number of entries.
// There are three cases. In a new table, entries are unversioned, because an earlier incarnation
// may have written them. If a new kernel map replaces the former one, its entries are changes of
// the load balancer, and the table refills the map. If the same kernel map returns (it was
// unpinned, or could not be written), load compares it with the table like a scan.
func (m *replica) load(ctx context.Context, k *kmap.Map, t *table.Table) (n int, err error) {
	info := k.Info()
	again := m.loaded == identityOf(&info) && m.offered == t
	if !again {
		// Kept if the same map returns: after a failed rescan, the next load must rescan it, too.
		// Otherwise the entries of peers in it would become changes of this node.
		m.loaded = mapIdentity{}
	}
	switch {
	case !m.wasOffered:
		n, err = kmap.LoadAll(ctx, k, t, m.daemon.clock.now)
	case again:
		n, err = m.rescan(ctx, k, t)
	default:
		n, err = m.refill(ctx, k, t)
	}
	if err == nil {
		m.loaded = identityOf(&info)
	}
	return n, err
}
