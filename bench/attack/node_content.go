package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
)

// entries are entries of a map.
type entries map[[keySize]byte][valueSize]byte

// freshEntries are the entries that a load balancer has written during an attack, while its syncd was stopped. Only the map of
// its own node has to hold them during the attack. All maps have to hold them afterwards.
type freshEntries struct {
	of entries // does not change
	// complete reports that the map of the node has all entries.
	complete atomic.Bool
}

// writeFresh writes new entries during an attack, as the load balancer does, and returns their keys.
func (n *node) writeFresh(count uint32) ([][keySize]byte, error) {
	fresh := &freshEntries{of: make(entries)}
	first := 1<<18 + uint32(n.version)
	for flow := first; flow < first+count; flow++ {
		key, value := n.nextEntry(flow)
		fresh.of[key] = value
	}
	n.fresh.Store(fresh)
	for key, value := range fresh.of {
		if err := n.update(key, value); err != nil {
			return nil, err
		}
	}
	fresh.complete.Store(true)
	return slices.Collect(maps.Keys(fresh.of)), nil
}

// endAttack adds the fresh entries to those that all maps have to hold. No monitor runs.
func (n *node) endAttack() {
	if fresh := n.fresh.Swap(nil); fresh != nil {
		maps.Copy(n.written, fresh.of)
	}
}

// checkContent returns an error unless this node's map holds exactly the entries that the load
// balancers of all nodes wrote under their own keys. It ignores entries under other keys.
func (n *node) checkContent(nodes []*node) error {
	held, err := n.entries()
	if err != nil {
		return err
	}
	for _, o := range nodes {
		if missing, other, surplus := o.compare(held); missing+other+surplus > 0 {
			return fmt.Errorf("map of %s: of %d entries of %s, %d are missing, %d differ, %d are surplus",
				n.name, len(o.written), o.name, missing, other, surplus)
		}
	}
	return nil
}

// wrongEntries returns the number of entries of the load balancers that are missing in this node's map, differ or
// are surplus.
func (n *node) wrongEntries(nodes []*node) (wrong int, err error) {
	fresh := n.fresh.Load()
	complete := fresh != nil && fresh.complete.Load() // before the map is read
	held, err := n.entries()
	if err != nil {
		return 0, err
	}
	for _, o := range nodes {
		missing, other, surplus := o.compare(held)
		wrong += missing + other + surplus
	}
	if complete {
		for key := range fresh.of {
			if _, ok := held[key]; !ok {
				wrong++
			}
		}
	}
	return wrong, nil
}

// compare compares the content of a map with the entries of this node's load balancer. Fresh entries may be missing, and are
// surplus with another value.
func (n *node) compare(held entries) (missing, other, surplus int) {
	for key, want := range n.written {
		switch got, ok := held[key]; {
		case !ok:
			missing++
		case got != want:
			other++
		}
	}
	fresh := n.fresh.Load()
	for key, got := range held {
		if _, ok := n.written[key]; ok || binary.BigEndian.Uint32(key[:]) != uint32(n.number) {
			continue
		}
		if fresh != nil {
			if want, ok := fresh.of[key]; ok && want == got {
				continue
			}
		}
		surplus++
	}
	return missing, other, surplus
}

// entries returns all entries of this node's map. It restarts an iteration that concurrent changes
// abort, at most 20 times.
func (n *node) entries() (held entries, err error) {
	for range 20 {
		if held, err = n.readEntries(); !errors.Is(err, ebpf.ErrIterationAborted) {
			break
		}
	}
	return held, err
}

func (n *node) readEntries() (entries, error) {
	held := make(entries)
	var key [keySize]byte
	var value [valueSize]byte
	all := n.m.Iterate()
	for all.Next(&key, &value) {
		held[key] = value
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("read the map of %s: %w", n.name, err)
	}
	return held, nil
}
