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
	// Of those refused, what the decoder could not bring into this node's form.
	outOfRange, withoutLink uint64
	// rejected are the records that the peer may not send.
	rejected [rejections]uint64
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
		in.opt = table.RemoteOptions{Touch: (in.sweep && !b.request) || b.retold, Repair: b.retold}
		in.times = in.l.r.opt.Times().Shift(int64(in.l.clockOffset()))
		in.m.table.Update(in.apply)
		in.tx = nil
	}
	if in.job != nil {
		in.job.left += int(in.result.rejected[rejectLimit] + in.result.refused + in.result.ahead - in.result.outOfRange - in.result.withoutLink)
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
	in.tx, in.ids, in.tableRejected = tx, in.ids[:0], tx.Rejected()
	in.l.scratch(in.m.layout)
	in.authorise(b.owners)
	for i, w := range b.owners {
		if string(w.node) != in.l.peer.Node && in.opt.Sender == 0 {
			in.opt.Sender = in.sender(tx)
		}
		id := table.NoOwner // an owner that is not accepted takes up no room
		if in.verdicts[i] == accepted {
			id = tx.Intern(w.owner())
		}
		in.ids = append(in.ids, id)
	}
	if in.opt.Touch {
		in.judge(b.owners)
	}
	in.result.err = b.groups(in.wires[:], in.group)
	in.result.head = tx.Head()
}

// sender returns the id of the peer, 0 if it cannot have one.
func (in *intake) sender(tx *table.Tx) table.OwnerID {
	id := tx.Intern(in.l.peer)
	if id == table.NoOwner {
		return 0
	}
	return id
}

// mergeGroup merges deltas whose keys the table reads ahead.
func (in *intake) mergeGroup(wires []wireDelta) error {
	size, n := in.m.layout.KeySize, 0
	for i := range wires {
		in.keys[n] = in.l.keys[n*size : (n+1)*size]
		if err := in.decoder.Key(in.keys[n], wires[i].key); err != nil {
			if in.setAside(&wires[i], err) {
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
	case w.operation < mapsyncv1.Operation_OPERATION_UPDATE || w.operation > mapsyncv1.Operation_OPERATION_EXPIRE:
		return fmt.Errorf("read operation %d: %w", w.operation, errMalformed)
	case w.version == 0:
		return fmt.Errorf("read record without a version: %w", errMalformed)
	case int(w.owner) >= len(in.ids):
		return fmt.Errorf("read owner %d of %d: %w", w.owner, len(in.ids), errMalformed)
	}
	if why := in.verdicts[w.owner]; why != accepted {
		in.result.rejected[why]++
		return nil
	}
	d.Key, d.Version, d.Owner = key, table.Version(w.version), in.ids[w.owner]
	d.Value, d.Delete = nil, w.operation != mapsyncv1.Operation_OPERATION_UPDATE
	d.Expired = w.operation == mapsyncv1.Operation_OPERATION_EXPIRE
	if d.Version > in.limit {
		in.result.ahead++
		return nil
	}
	if !d.Delete {
		d.Value = in.l.value[:in.m.layout.ValueSize]
		if err := in.decoder.Value(d.Value, w.value, &in.times); err != nil {
			if in.setAside(w, err) {
				return nil
			}
			return fmt.Errorf("read value: %w", err)
		}
	}
	in.excepted.settle(w.key)
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
	case table.Defended:
		in.result.rejected[rejectStranger]++
	case table.Refused:
		if n := in.tx.Rejected(); n != in.tableRejected {
			in.tableRejected = n
			in.result.rejected[rejectLimit]++
			in.excepted.addLimited(w.key, d.Version, in.tx.Owner(d.Owner))
		} else {
			in.result.refused++
		}
	}
	return nil
}

// setAside counts and remembers a record that this node's map cannot hold as it is. It
// reports whether the error is of that kind: the others are of the whole batch.
func (in *intake) setAside(w *wireDelta, err error) bool {
	link := errors.Is(err, schema.ErrLink)
	switch {
	case !link && !errors.Is(err, schema.ErrRange):
		return false
	case w.operation != mapsyncv1.Operation_OPERATION_UPDATE:
		in.excepted.settle(w.key) // it is not here, as it should be
		return true
	case link:
		in.result.withoutLink++
	default:
		in.result.outOfRange++
	}
	in.result.refused++
	in.except(w, err)
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
