package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"mapsync/internal/dataplane"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// mix is a load of everything that can happen to a map: changes that the data plane
// reports as hooks would, changes in place and others that nobody reports where there
// are no hooks, and bpf(2) calls, single and in batches. Every random choice follows
// from the seed.
type mix struct {
	Seed   uint64
	Shared int // flows that all nodes write, besides each one's own
}

// sharedNode stands in the keys of flows that belong to nobody.
const sharedNode = 1 << 31

// flowKey says whose a flow is, and which.
type flowKey struct{ node, flow uint32 }

func (k flowKey) bytes() []byte {
	key := make([]byte, keySize)
	fillKey(key, k.node, k.flow)
	return key
}

// maxMixed is how many changes one step makes at most; a step of feed.Options.Capacity
// overflows the smallest buffers.
const maxMixed = 64

// mixed makes one step of a mixed load.
func (b *balancer) mixed(l load, r *rand.Rand) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	keys := make([]flowKey, 1+r.IntN(maxMixed))
	for i := range keys {
		keys[i] = flowKey{b.node, uint32(r.IntN(l.Flows))}
		if r.IntN(5) == 0 {
			keys[i] = flowKey{sharedNode, uint32(r.IntN(l.Mixed.Shared))}
		}
	}
	switch n := r.IntN(100); {
	case n < 45:
		return b.reported(keys, r)
	case n < 60:
		return b.silent(keys, func() dataplane.Op { return dataplane.InPlace })
	case n < 70:
		return b.silent(keys, func() dataplane.Op {
			if r.IntN(3) == 0 {
				return dataplane.Delete
			}
			return dataplane.Update
		})
	case n < 80:
		return b.calls(keys, r)
	case n < 90:
		return b.batchUpdate(keys)
	default:
		return b.batchDelete(keys)
	}
}

// write gives a flow a new version, in the model too, and returns its entry.
func (b *balancer) write(k flowKey) (key, value []byte) {
	b.next++
	version := uint64(b.node)<<48 | b.next
	value = make([]byte, valueSize)
	fillValue(value, k.flow, version)
	if k.node == b.node {
		b.model[k.flow] = flowState{version, version}
	}
	return k.bytes(), value
}

// remove takes a flow out of the model and returns its key.
func (b *balancer) remove(k flowKey) []byte {
	if k.node == b.node {
		delete(b.model, k.flow)
	}
	return k.bytes()
}

// reported changes flows as the data plane does, with an event for each.
func (b *balancer) reported(keys []flowKey, r *rand.Rand) error {
	b.feed.Reset()
	for _, k := range keys {
		if r.IntN(3) == 0 {
			b.feed.Add(table.OpDelete, table.ContextPacket, b.remove(k), nil)
			continue
		}
		key, value := b.write(k)
		b.feed.Add(table.OpUpdate, table.ContextPacket, key, value)
	}
	_, err := b.feed.Run() // what is not there is not deleted
	return err
}

// silent changes flows by a program that reports nothing.
func (b *balancer) silent(keys []flowKey, op func() dataplane.Op) error {
	b.unseen.Reset()
	heads := make([]uint64, len(keys)) // of what is changed in place
	for i, k := range keys {
		switch o := op(); o {
		case dataplane.Delete:
			b.unseen.Add(o, 0, b.remove(k), nil)
		case dataplane.Update:
			key, value := b.write(k)
			b.unseen.Add(o, 0, key, value)
		case dataplane.InPlace:
			b.next++
			heads[i] = uint64(b.node)<<48 | b.next
			b.unseen.Add(o, 0, k.bytes(), binary.LittleEndian.AppendUint64(nil, heads[i]))
		}
	}
	if _, err := b.unseen.Run(); err != nil {
		return err
	}
	for i, k := range keys {
		state, ok := b.model[k.flow]
		if heads[i] != 0 && k.node == b.node && ok && b.unseen.Result(i) == nil {
			b.model[k.flow] = flowState{heads[i], state.body}
		}
	}
	return nil
}

// calls changes flows by single bpf(2) calls, as a control plane or a collector does.
func (b *balancer) calls(keys []flowKey, r *rand.Rand) error {
	for _, k := range keys {
		var err error
		if r.IntN(2) == 0 {
			err = b.m.Delete(b.remove(k))
		} else {
			key, value := b.write(k)
			err = b.m.Update(key, value, ebpf.UpdateAny)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("change the map by bpf(2): %w", err)
		}
	}
	return nil
}

func (b *balancer) batchUpdate(keys []flowKey) error {
	batch, values := make([][keySize]byte, len(keys)), make([][valueSize]byte, len(keys))
	for i, k := range keys {
		key, value := b.write(k)
		batch[i], values[i] = [keySize]byte(key), [valueSize]byte(value)
	}
	if _, err := b.m.BatchUpdate(batch, values, nil); err != nil {
		return fmt.Errorf("change the map by a bpf(2) batch: %w", err)
	}
	return nil
}

// batchDelete deletes in one call as far as the kernel goes: it stops at a key that is
// not there.
func (b *balancer) batchDelete(keys []flowKey) error {
	batch := make([][keySize]byte, len(keys))
	for i, k := range keys {
		batch[i] = [keySize]byte(b.remove(k))
	}
	for len(batch) > 0 {
		n, err := b.m.BatchDelete(batch, nil)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, ebpf.ErrKeyNotExist):
			return fmt.Errorf("delete by a bpf(2) batch: %w", err)
		}
		batch = batch[n+1:]
	}
	return nil
}

// clear ends all flows, shared ones too: each is written once more and then deleted, so
// that what an LRU map had thrown out is deleted, too.
func (b *balancer) clear(l load) error {
	return b.each(l, func(k flowKey) {
		key, value := b.write(k)
		b.feed.Add(table.OpUpdate, table.ContextPacket, key, value)
		b.feed.Add(table.OpDelete, table.ContextPacket, b.remove(k), nil)
	}, 1)
}

// rewrite begins one in sixteen of the flows anew.
func (b *balancer) rewrite(l load) error {
	return b.each(l, func(k flowKey) {
		key, value := b.write(k)
		b.feed.Add(table.OpUpdate, table.ContextPacket, key, value)
	}, 16)
}

// each runs the data plane over one in so many of the flows of a load.
func (b *balancer) each(l load, add func(flowKey), oneIn int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.feed.Reset()
	run := func() error {
		_, err := b.feed.Run()
		b.feed.Reset()
		return err
	}
	for i := 0; i < l.Flows+l.Mixed.Shared; i += oneIn {
		k := flowKey{b.node, uint32(i)}
		if i >= l.Flows {
			k = flowKey{sharedNode, uint32(i - l.Flows)}
		}
		add(k)
		if i/oneIn%(batchChanges/2) == batchChanges/2-1 {
			if err := run(); err != nil {
				return err
			}
		}
	}
	return run()
}
