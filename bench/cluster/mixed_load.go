package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"

	"mapsync/internal/dataplane"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// mixedLoad is a load with every kind of change to a map. The data plane reports some changes as
// hooks would. Other changes, in place or not, remain unreported without hooks. bpf(2)
// calls, single and in batches, make the rest. Every random choice follows from the seed.
type mixedLoad struct {
	Seed   uint64
	Shared int // flows that all nodes write, besides their own
}

// sharedNode replaces the node's number in the keys of shared flows.
const sharedNode = 1 << 31

// flowKey identifies a flow by its node and its number.
type flowKey struct{ node, flow uint32 }

func (k flowKey) bytes() []byte {
	key := make([]byte, keySize)
	fillKey(key, k.node, k.flow)
	return key
}

// maxMixedChanges is the highest number of changes in one step. A step of injector.Options.Capacity
// changes overflows the smallest buffers.
const maxMixedChanges = 64

// mixedStep makes one step of a mixed load.
func (b *balancer) mixedStep(l load, r *rand.Rand) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	keys := make([]flowKey, 1+r.IntN(maxMixedChanges))
	for i := range keys {
		keys[i] = flowKey{b.node, uint32(r.IntN(l.Flows))}
		if r.IntN(5) == 0 {
			keys[i] = flowKey{sharedNode, uint32(r.IntN(l.MixedLoad.Shared))}
		}
	}
	switch n := r.IntN(100); {
	case n < 45:
		return b.reportedWrites(keys, r)
	case n < 60:
		return b.unreportedWrites(keys, func() dataplane.Op { return dataplane.InPlace })
	case n < 70:
		return b.unreportedWrites(keys, func() dataplane.Op {
			if r.IntN(3) == 0 {
				return dataplane.Delete
			}
			return dataplane.Update
		})
	case n < 80:
		return b.syscallWrites(keys, r)
	case n < 90:
		return b.batchUpdate(keys)
	default:
		return b.batchDelete(keys)
	}
}

// write sets a flow to a new version, in the model too, and returns its entry.
func (b *balancer) write(k flowKey) (key, value []byte) {
	b.next++
	version := uint64(b.node)<<48 | b.next
	value = make([]byte, valueSize)
	fillValue(value, k.flow, version)
	if k.node == b.node {
		b.expectedFlows[k.flow] = flowState{version, version}
	}
	return k.bytes(), value
}

// remove deletes a flow from the model and returns its key.
func (b *balancer) remove(k flowKey) []byte {
	if k.node == b.node {
		delete(b.expectedFlows, k.flow)
	}
	return k.bytes()
}

// reportedWrites changes flows as the data plane does, with an event for each change.
func (b *balancer) reportedWrites(keys []flowKey, r *rand.Rand) error {
	b.injector.Reset()
	for _, k := range keys {
		if r.IntN(3) == 0 {
			b.injector.Add(table.OpDelete, table.ContextPacket, b.remove(k), nil)
			continue
		}
		key, value := b.write(k)
		b.injector.Add(table.OpUpdate, table.ContextPacket, key, value)
	}
	return b.run(true)
}

// unreportedWrites changes flows by a program that reports nothing.
func (b *balancer) unreportedWrites(keys []flowKey, op func() dataplane.Op) error {
	b.unreported.Reset()
	heads := make([]uint64, len(keys)) // of the flows that are changed in place
	for i, k := range keys {
		switch o := op(); o {
		case dataplane.Delete:
			b.unreported.Add(o, 0, b.remove(k), nil)
		case dataplane.Update:
			key, value := b.write(k)
			b.unreported.Add(o, 0, key, value)
		case dataplane.InPlace:
			b.next++
			heads[i] = uint64(b.node)<<48 | b.next
			b.unreported.Add(o, 0, k.bytes(), binary.LittleEndian.AppendUint64(nil, heads[i]))
		}
	}
	err := untilUnlocked(func() error {
		_, err := b.unreported.Run()
		for i := 0; i < len(keys) && err == nil; i++ {
			if result := b.unreported.Result(i); lockedBucket(result) {
				err = result
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	for i, k := range keys {
		state, ok := b.expectedFlows[k.flow]
		if heads[i] != 0 && k.node == b.node && ok && b.unreported.Result(i) == nil {
			b.expectedFlows[k.flow] = flowState{heads[i], state.body}
		}
	}
	return nil
}

// syscallWrites changes flows by single bpf(2) calls, as a control plane or a collector does.
func (b *balancer) syscallWrites(keys []flowKey, r *rand.Rand) error {
	for _, k := range keys {
		change := func() error { return b.m.Delete(k.bytes()) }
		if r.IntN(2) == 0 {
			b.remove(k)
		} else {
			key, value := b.write(k)
			change = func() error { return b.m.Update(key, value, ebpf.UpdateAny) }
		}
		err := untilUnlocked(change)
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
	err := untilUnlocked(func() error {
		_, err := b.m.BatchUpdate(batch, values, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("change the map by a bpf(2) batch: %w", err)
	}
	return nil
}

// batchDelete deletes the keys in one call, up to the first key that is missing: the kernel stops
// there.
func (b *balancer) batchDelete(keys []flowKey) error {
	batch := make([][keySize]byte, len(keys))
	for i, k := range keys {
		batch[i] = [keySize]byte(b.remove(k))
	}
	for tries := 0; len(batch) > 0; {
		n, err := b.m.BatchDelete(batch, nil)
		switch {
		case lockedBucket(err) && tries < maxLockedTries:
			tries++
			n-- // the key of that bucket again
		case err == nil:
			return nil
		case !errors.Is(err, ebpf.ErrKeyNotExist):
			return fmt.Errorf("delete by a bpf(2) batch: %w", err)
		}
		batch = batch[n+1:]
	}
	return nil
}

// clearTries is the maximum number of attempts to clear one flow.
const clearTries = 1000

// clear deletes all flows, shared ones too. It writes each flow once before the delete, so that the
// delete also covers flows that an LRU map has evicted. The map may evict the flow between the two,
// because the peers' flows arrive at the same time. Then the delete finds nothing, and clear tries
// again.
func (b *balancer) clear(l load) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range b.flowsOf(l, 1) {
		for try := 0; ; try++ {
			b.injector.Reset()
			key, value := b.write(k)
			b.injector.Add(table.OpUpdate, table.ContextPacket, key, value)
			b.injector.Add(table.OpDelete, table.ContextPacket, b.remove(k), nil)
			failed, err := b.injector.Run()
			if err != nil {
				return err
			}
			if failed == 0 {
				break
			}
			if try == clearTries {
				return fmt.Errorf("clear flow %d of node %d: the map evicts it each time", k.flow, k.node)
			}
		}
	}
	return nil
}

// rewrite gives one in sixteen of the flows a new version.
func (b *balancer) rewrite(l load) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.injector.Reset()
	for k := range b.flowsOf(l, 16) {
		key, value := b.write(k)
		if b.injector.Add(table.OpUpdate, table.ContextPacket, key, value) {
			continue
		}
		if err := b.run(true); err != nil {
			return err
		}
		b.injector.Reset()
		b.injector.Add(table.OpUpdate, table.ContextPacket, key, value)
	}
	return b.run(true)
}

// flowsOf returns one in oneIn of the flows of a load, shared ones too.
func (b *balancer) flowsOf(l load, oneIn int) iter.Seq[flowKey] {
	return func(yield func(flowKey) bool) {
		for i := 0; i < l.Flows+l.MixedLoad.Shared; i += oneIn {
			k := flowKey{b.node, uint32(i)}
			if i >= l.Flows {
				k = flowKey{sharedNode, uint32(i - l.Flows)}
			}
			if !yield(k) {
				return
			}
		}
	}
}
