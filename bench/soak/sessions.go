package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/injector"
	"mapsync/syncd/table"
)

// The entries have the size of the entries in LoxiLB's conntrack map, in bytes.
const (
	keySize   = 48
	valueSize = 176
)

// tick is the interval at which sessions are created and deleted.
const tick = 10 * time.Millisecond

// maxBatch limits the changes of one run of the injector.
const maxBatch = 4096

// sessionLoad creates and deletes sessions at a rate, as a load balancer's data plane does.
type sessionLoad struct {
	injector   *injector.Injector
	created    uint64 // sessions with lower numbers exist or existed
	deleted    uint64 // sessions with lower numbers are deleted; deleted <= created
	key, value []byte
}

func newSessionLoad(m *ebpf.Map, shared map[string]*ebpf.Map) (*sessionLoad, error) {
	f, err := injector.Open(m, shared, injector.Options{Capacity: maxBatch})
	if err != nil {
		return nil, err
	}
	return &sessionLoad{injector: f, key: make([]byte, keySize), value: make([]byte, valueSize)}, nil
}

// run creates sessions until ctx ends, which is not an error, and then deletes the remaining ones.
// A run that falls behind catches up, so that rate and lifetime hold on average.
func (s *sessionLoad) run(ctx context.Context, rate int, lifetime time.Duration) error {
	began := time.Now()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for ctx.Err() == nil {
		elapsed := time.Since(began)
		if err := s.advance(sessionsAfter(elapsed, rate), sessionsAfter(elapsed-lifetime, rate)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-ticks.C:
		}
	}
	return s.advance(s.created, s.created)
}

// sessionsAfter returns the number of sessions that a rate creates in the elapsed time.
func sessionsAfter(elapsed time.Duration, rate int) uint64 {
	return uint64(max(0, elapsed.Seconds()) * float64(rate))
}

// advance creates the sessions below the number created and deletes those below the number deleted.
func (s *sessionLoad) advance(created, deleted uint64) error {
	for s.created < created || s.deleted < deleted {
		s.injector.Reset()
		n := 0
		for ; n < maxBatch/2 && s.created < created; n++ {
			s.fill(s.created)
			s.injector.Add(table.OpUpdate, table.ContextPacket, s.key, s.value)
			s.created++
		}
		for ; n < maxBatch && s.deleted < min(deleted, s.created); n++ {
			s.fill(s.deleted)
			s.injector.Add(table.OpDelete, table.ContextPacket, s.key, nil)
			s.deleted++
		}
		if failed, err := s.injector.Run(); err != nil || failed != 0 {
			return fmt.Errorf("make sessions: %d refused by the map, %w", failed, err)
		}
	}
	return nil
}

// fill sets key and value to those of session n. No two sessions have the same key.
func (s *sessionLoad) fill(n uint64) {
	const odd = 0x9e3779b97f4a7c15 // an odd multiplier maps different numbers to different numbers
	binary.LittleEndian.PutUint64(s.key, n*odd)
	binary.LittleEndian.PutUint64(s.key[40:], n)
	binary.LittleEndian.PutUint64(s.value, n)
	binary.LittleEndian.PutUint64(s.value[168:], n^odd)
}

func (s *sessionLoad) close() error { return s.injector.Close() }

// sameContent returns the number of entries in the first map. It returns an error if the two kernel
// maps differ.
func sameContent(a, b *ebpf.Map) (int, error) {
	var key, value, other []byte
	n := 0
	entries := a.Iterate()
	for entries.Next(&key, &value) {
		if err := b.Lookup(key, &other); err != nil || string(other) != string(value) {
			return n, fmt.Errorf("compare the maps: entry %x differs, %w", key, err)
		}
		n++
	}
	if err := entries.Err(); err != nil {
		return n, fmt.Errorf("read map: %w", err)
	}
	m := 0
	for entries = b.Iterate(); entries.Next(&key, &value); {
		m++
	}
	if err := entries.Err(); err != nil {
		return n, fmt.Errorf("read map: %w", err)
	}
	if n != m {
		return n, errors.New(fmt.Sprint("compare the maps: they hold ", n, " and ", m, " entries"))
	}
	return n, nil
}
