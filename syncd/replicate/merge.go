package replicate

import (
	"errors"
	"fmt"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// merged is what became of a batch.
type merged struct {
	err                      error
	head                     uint64
	accepted, refused, ahead uint64
	// Of those refused, what the decoder could not bring into this node's form,
	// with the first reason.
	outOfRange, withoutLink uint64
	aside                   error
}

// merge takes in a batch. The lock is not held. An error is one of this map.
func (in *intake) merge(b *batch) (merged, error) {
	if b.previous != in.position || b.position < b.previous {
		in.l.r.count.gaps.Add(1)
		return merged{}, fmt.Errorf("merge batch of map %q from %d to %d at %d: %w",
			in.m.name, b.previous, b.position, in.position, errGap)
	}
	in.result = merged{head: in.head}
	if b.deltas > 0 {
		now := in.l.r.opt.Now()
		in.now = now.UnixNano()
		in.limit = table.Version(now.Add(in.l.r.opt.MaxClockAhead).UnixNano())
		in.opt = table.RemoteOptions{Touch: in.sweep || b.retold}
		in.times = in.l.r.opt.Times().Shift(int64(in.l.clockOffset()))
		in.m.table.Update(in.apply)
		in.tx = nil
	}
	if in.job != nil {
		in.job.left += int(in.result.refused + in.result.ahead)
	}
	if in.result.err != nil {
		return merged{}, fmt.Errorf("merge batch of map %q: %w", in.m.name, in.result.err)
	}
	if b.caughtUp && in.sweep {
		in.sweepRest()
	}
	return in.result, nil
}

func (in *intake) mergeAll(tx *table.Tx) {
	b := &in.l.batch
	in.tx, in.ids = tx, in.ids[:0]
	in.l.scratch(in.m.layout)
	for _, w := range b.owners {
		in.ids = append(in.ids, tx.Intern(w.owner()))
	}
	if in.opt.Touch {
		in.judge(b.owners)
	}
	in.result.err = b.groups(in.wires[:], in.group)
	in.result.head = tx.Head()
}

// mergeGroup merges deltas whose keys the table reads ahead.
func (in *intake) mergeGroup(wires []wireDelta) error {
	size, n := in.m.layout.KeySize, 0
	for i := range wires {
		in.keys[n] = in.l.keys[n*size : (n+1)*size]
		if err := in.decoder.Key(in.keys[n], wires[i].key); err != nil {
			if in.setAside(err) {
				continue
			}
			return fmt.Errorf("read key: %w", err)
		}
		if n < i {
			wires[n] = wires[i]
		}
		n++
	}
	in.tx.Warm(in.keys[:n])
	for i := range wires[:n] {
		if err := in.mergeOne(&wires[i], in.keys[i]); err != nil {
			return err
		}
	}
	return nil
}

func (in *intake) mergeOne(w *wireDelta, key []byte) error {
	d := &in.delta
	switch {
	case w.operation != mapsyncv1.Operation_OPERATION_UPDATE && w.operation != mapsyncv1.Operation_OPERATION_DELETE:
		return fmt.Errorf("read operation %d: %w", w.operation, errMalformed)
	case w.version == 0:
		return fmt.Errorf("read record without a version: %w", errMalformed)
	case int(w.owner) >= len(in.ids):
		return fmt.Errorf("read owner %d of %d: %w", w.owner, len(in.ids), errMalformed)
	}
	d.Key, d.Version, d.Owner = key, table.Version(w.version), in.ids[w.owner]
	d.Value, d.Delete = nil, w.operation == mapsyncv1.Operation_OPERATION_DELETE
	if d.Version > in.limit {
		in.result.ahead++
		return nil
	}
	if !d.Delete {
		d.Value = in.l.value[:in.m.layout.ValueSize]
		if err := in.decoder.Value(d.Value, w.value, &in.times); err != nil {
			if in.setAside(err) {
				return nil
			}
			return fmt.Errorf("read value: %w", err)
		}
	}
	if in.job != nil && in.job.list != nil {
		in.listOne(w, d)
		return nil
	}
	if in.opt.Touch {
		in.opt.Replace = in.knows[w.owner]
	}
	switch in.tx.Remote(d, in.now, in.opt) {
	case table.Accepted:
		in.result.accepted++
		if in.job != nil && in.counts[w.owner] {
			in.job.found++
		}
	case table.Refused:
		in.result.refused++
	}
	return nil
}

// setAside counts a record that this node's map cannot hold as it is. It reports
// whether the error is of that kind: the others are of the whole batch.
func (in *intake) setAside(err error) bool {
	switch {
	case errors.Is(err, schema.ErrRange):
		in.result.outOfRange++
	case errors.Is(err, schema.ErrLink):
		in.result.withoutLink++
	default:
		return false
	}
	in.result.refused++
	if in.result.aside == nil {
		in.result.aside = err
	}
	return true
}

// scratch makes room for the keys of a group and for a value.
func (l *link) scratch(m Layout) {
	if n := table.WarmKeys * m.KeySize; len(l.keys) < n {
		l.keys = make([]byte, n)
	}
	if len(l.value) < m.ValueSize {
		l.value = make([]byte, m.ValueSize)
	}
}

// sweepRest deletes what the peer had and the walk did not meet.
func (in *intake) sweepRest() {
	c := in.m.table.NewCursor(0)
	defer c.Close()
	now := in.l.r.opt.Now().UnixNano()
	for more := true; more; {
		in.m.table.Update(func(tx *table.Tx) {
			more = tx.Sweep(in.l.peer.Node, in.before, now, c, touchChunk)
			in.result.head = tx.Head()
		})
	}
}
