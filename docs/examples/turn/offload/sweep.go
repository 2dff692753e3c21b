package offload

import (
	"errors"
	"net/netip"
	"time"
)

// grace is the time after its end at which an entry is removed. Before that, its server removes it.
const grace = 2 * time.Second

// Sweeper removes entries whose time has ended although no server has removed them: those of a server
// that has failed, on a node that no client uses.
type Sweeper struct {
	offload *Offload
	alone   map[any]bool // permissions without an allocation, and counters without a channel, at the last sweep
}

// NewSweeper returns a Sweeper for the maps of o.
func NewSweeper(o *Offload) *Sweeper { return &Sweeper{offload: o} }

// Sweep removes the entries that have ended. It removes a permission without an allocation, and counters
// without a channel, if they were alone at the previous call, too: syncd does not replicate maps in
// order. If another node owns the entry and is alive, syncd restores it.
func (s *Sweeper) Sweep() (removed int, err error) {
	o, before := s.offload, time.Now().Add(-grace)
	var errs []error
	count := func(err error) { removed++; errs = append(errs, err) }
	channels, err := o.Channels()
	if err != nil {
		return 0, err
	}
	for i := range channels {
		if channels[i].Expires.Before(before) {
			count(o.DeleteChannel(&channels[i]))
		}
	}
	allocations, err := o.Allocations()
	if err != nil {
		return removed, err
	}
	for i := range allocations {
		if allocations[i].Expires.Before(before) {
			count(o.DeleteAllocation(allocations[i].Client))
		}
	}
	err = s.sweepAlone(count)
	return removed, errors.Join(append(errs, err)...)
}

// sweepAlone removes permissions and counters. It reads what they belong to after them, because that is
// created before them.
func (s *Sweeper) sweepAlone(count func(error)) error {
	o, before := s.offload, s.alone
	s.alone = make(map[any]bool)
	again := func(key any) bool { s.alone[key] = true; return before[key] }
	permissions, errP := o.Permissions()
	counters, errC := o.Counters()
	allocations, errA := o.Allocations()
	channels, err := o.Channels()
	if err := errors.Join(errP, errC, errA, err); err != nil {
		return err
	}
	clients := make(map[netip.AddrPort]bool, len(allocations))
	for i := range allocations {
		clients[allocations[i].Client] = true
	}
	for i := range permissions {
		p := &permissions[i]
		if p.Expires.Before(time.Now().Add(-grace)) || !clients[p.Client] && again(Permission{Client: p.Client, Peer: p.Peer}) {
			count(o.DeletePermission(p))
		}
	}
	for i := range channels {
		delete(counters, channels[i].ClientChannel)
	}
	for c := range counters {
		if again(c) {
			count(remove(o.objects.TurnStats, o.flow(c.Client, c.Number)))
		}
	}
	return nil
}
