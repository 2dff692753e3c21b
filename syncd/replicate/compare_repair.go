package replicate

import (
	"fmt"
	"log/slog"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// postpone has the next repair come later than the last.
func (in *intake) postpone(now time.Time) {
	c := &in.comparing
	c.pause = min(max(2*c.pause, in.l.r.opt.compare), maxRepairPause)
	c.retry = now.Add(c.pause)
}

// comparisons appends what is to be asked for.
func (l *link) comparisons(out []*mapsyncv1.SubscribeRequest) []*mapsyncv1.SubscribeRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	for index, in := range l.byIndex {
		c := &in.comparing
		if in.state != StateSyncing && in.state != StateCaughtUp {
			continue
		}
		if c.want != nil && c.job == nil {
			c.job = &job{in: c.want, before: in.m.head() + 1, moved: time.Now()}
			if c.list != nil && c.list.chosen {
				c.job.list, c.list = c.list, nil
			} else {
				l.r.count.repairs.Add(1)
			}
			c.want, c.ask = nil, false
			out = append(out, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Retell{
				Retell: &mapsyncv1.RetellRequest{Map: index, Buckets: setBytes(c.job.in)},
			}})
		}
		if c.ask {
			c.ask = false
			out = append(out, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Compare{
				Compare: &mapsyncv1.CompareRequest{Map: index},
			}})
		}
	}
	return out
}

// stall gives up the subscription of a map whose job is stuck: the peer does not take another
// request before it has answered this one. The lock is held.
func (in *intake) stall(now time.Time) {
	err := fmt.Errorf("receive records of map %q again: nothing for %s: %w", in.m.name, in.l.r.opt.stall, errJobStalled)
	in.l.r.opt.Logger.Warn("map of peer set aside", slog.String("peer", in.l.peer.Node),
		slog.String("map", in.m.name), slog.Any("error", err))
	in.fail(err, now)
}

// takeRetold ends a job. An error is one of the stream.
func (l *link) takeRetold(m *mapsyncv1.Retold) error {
	var in *intake
	var j *job
	err := l.about(m.GetMap(), func(found *intake) error {
		if in, j = found, found.comparing.job; j == nil {
			return fmt.Errorf("receive the end of what was not asked for, of map %q: %w", in.m.name, errProtocol)
		}
		j.moved = time.Now()
		return nil
	})
	if in == nil || err != nil {
		return err
	}
	if j.list != nil {
		in.listRest(j)
	} else {
		in.sweepBuckets(j)
	}
	untold := int(min(m.GetUntold(), 1<<31))
	return l.about(m.GetMap(), func(in *intake) error {
		if in.comparing.job == j {
			j.left += max(0, untold-in.comparing.unsent) // the digest leaves out the others
			in.endJob(j, time.Now())
		}
		return nil
	})
}

// endJob draws the conclusions. The lock is held.
func (in *intake) endJob(j *job, now time.Time) {
	c := &in.comparing
	c.job, c.ask = nil, true
	poke(in.l.wake)
	if j.list != nil {
		j.list.end(j.list.excess())
		return
	}
	// What is merged from here on is not acknowledged before the repair is written.
	in.head = max(in.head, j.head)
	in.l.r.count.repaired.Add(uint64(j.found))
	c.divergent = j.found + j.left
	if j.found+j.left > 0 {
		c.agreed = false
		in.l.r.opt.Logger.Warn("map was told again by peer where it differed", slog.String("peer", in.l.peer.Node),
			slog.String("map", in.m.name), slog.Int("repaired", j.found), slog.Int("left", j.left))
	}
	if j.left > 0 {
		in.postpone(now)
		return
	}
	c.pause, c.retry = 0, now.Add(in.l.r.opt.compare) // whatever pause the repairs before were at
	// This node holds all that was told, or newer. What differs still is the peer's
	// to find, or under way to it.
	for _, s := range c.suspects {
		s.fresh = j.in
	}
}

// sweepBuckets deletes what the peer had in the buckets and was not met.
func (in *intake) sweepBuckets(j *job) {
	c := in.m.table.NewCursor(0)
	defer c.Close()
	now := in.l.r.opt.Now().UnixNano()
	for more := true; more; {
		in.m.table.Update(func(tx *table.Tx) {
			var n int
			n, more = tx.SweepBuckets(in.l.peer.Node, j.in, j.before, now, c, touchChunk)
			j.found += n
			j.head = tx.Head()
		})
	}
}

// judge finds out, for the owners of a batch, whether their records are compared with this
// peer, and whether it is the one who knows them.
func (in *intake) judge(owners []wireOwner) {
	v := in.l.r.view.Load()
	in.counts, in.knows = in.counts[:0], in.knows[:0]
	for _, w := range owners {
		node, knows := string(w.node), table.ReplaceNothing
		orphaned := v.orphaned(node)
		compared := orphaned || node == in.l.peer.Node || in.permit.requests(node)
		switch {
		case node == in.l.peer.Node:
			knows = table.ReplaceOwn
		case orphaned && in.permit.fallback:
			knows = table.ReplaceSame
		}
		in.counts, in.knows = append(in.counts, compared), append(in.knows, knows)
	}
}
