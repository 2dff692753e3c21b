package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/injector"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"
)

const (
	overflowPages   = 16 // of the smallest buffer of the sweep
	overflowEntries = 100_000
	overflowPart    = 4096
)

// measureOverflow changes all entries at once, through a buffer that is far too small, and measures when the peer's map
// is equal again.
func measureOverflow(ctx context.Context, buffer capture.Buffer) (o Overflow, err error) {
	setting, err := bufferSetting(buffer, overflowPages)
	if err != nil {
		return o, err
	}
	p, err := startNodes(ctx, overflowEntries, overflowEntries, setting)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	i, err := injector.Open(p.mapA, p.a.Shared, injector.Options{Capacity: overflowEntries, Perf: buffer == capture.BufferPerf})
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, i.Close()) }()
	var k key
	var v value
	for n := range overflowEntries {
		fillKey(k[:], n)
		fillValue(v[:], n, 0)
		setNumber(&v, 1)
		i.Add(table.OpUpdate, table.ContextPacket, k[:], v[:])
	}
	for at := 0; at < overflowEntries; at += overflowPart {
		part := min(overflowPart, overflowEntries-at)
		failed, err := i.RunPart(at, part)
		if err := errors.Join(err, refused(failed, part)); err != nil {
			return o, err
		}
	}
	o.Buffer, o.Events = string(buffer), overflowEntries
	if err := o.awaitEqual(ctx, p.mapB); err != nil {
		return o, err
	}
	s, err := p.a.Client.Status(ctx)
	if err != nil {
		return o, err
	}
	if o.Lost = s.Capture.LostBuffer; o.Lost == 0 {
		return o, fmt.Errorf("the buffer of %d pages lost none of %d events", overflowPages, overflowEntries)
	}
	return o, nil
}

// awaitEqual counts the entries of the peer that are not changed yet, until there are none.
func (o *Overflow) awaitEqual(ctx context.Context, peer *ebpf.Map) (err error) {
	m, err := kmap.Open(peer, kmap.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	const patience = time.Minute
	for began := time.Now(); ; sleep(10 * time.Millisecond) {
		asked := time.Since(began)
		differ, err := unchanged(ctx, m)
		if err != nil {
			return err
		}
		if o.Divergent == 0 {
			o.Divergent = differ
		}
		if asked >= overflowLimit && o.DivergentLate == 0 {
			o.DivergentLate = differ
		}
		if differ == 0 {
			o.Seconds = time.Since(began).Seconds()
			return nil
		}
		if asked > patience {
			return fmt.Errorf("%d entries still differ after %s", differ, patience)
		}
	}
}

// unchanged returns the number of entries without the change.
func unchanged(ctx context.Context, m *kmap.Map) (n int, err error) {
	n = overflowEntries
	err = m.ForEach(ctx, func(_, v []byte) error {
		if numberIn((*value)(v)) == 1 {
			n--
		}
		return nil
	})
	return n, err
}
