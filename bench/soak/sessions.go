package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/feed"
	"mapsync/syncd/table"
)

// The entries have the size of LoxiLB's conntrack map.
const (
	keySize   = 48
	valueSize = 176
)

// tick is how often sessions are created and deleted.
const tick = 10 * time.Millisecond

// maxBatch bounds the changes of one run of the feed.
const maxBatch = 4096

// sessions creates and deletes sessions at a rate, as a load balancer's data plane does.
type sessions struct {
	feed       *feed.Feed
	created    uint64 // sessions numbered below it exist or existed
	deleted    uint64 // sessions numbered below it are deleted; deleted <= created
	key, value []byte
}

func openSessions(m *ebpf.Map, shared map[string]*ebpf.Map) (*sessions, error) {
	f, err := feed.Open(m, shared, feed.Options{Capacity: maxBatch})
	if err != nil {
		return nil, err
	}
	return &sessions{feed: f, key: make([]byte, keySize), value: make([]byte, valueSize)}, nil
}

// run makes sessions until ctx ends, which is not an error, and deletes those that are left. A run that
// falls behind makes up for it: rate and lifetime hold on average.
func (s *sessions) run(ctx context.Context, rate int, lifetime time.Duration) error {
	began := time.Now()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for ctx.Err() == nil {
		elapsed := time.Since(began)
		if err := s.advance(upTo(elapsed, rate), upTo(elapsed-lifetime, rate)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-ticks.C:
		}
	}
	return s.advance(s.created, s.created)
}

// upTo returns how many sessions a rate makes in a time.
func upTo(elapsed time.Duration, rate int) uint64 {
	return uint64(max(0, elapsed.Seconds()) * float64(rate))
}

// advance creates sessions up to one number and deletes those up to another.
func (s *sessions) advance(created, deleted uint64) error {
	for s.created < created || s.deleted < deleted {
		s.feed.Reset()
		n := 0
		for ; n < maxBatch/2 && s.created < created; n++ {
			s.fill(s.created)
			s.feed.Add(table.OpUpdate, table.ContextPacket, s.key, s.value)
			s.created++
		}
		for ; n < maxBatch && s.deleted < min(deleted, s.created); n++ {
			s.fill(s.deleted)
			s.feed.Add(table.OpDelete, table.ContextPacket, s.key, nil)
			s.deleted++
		}
		if failed, err := s.feed.Run(); err != nil || failed != 0 {
			return fmt.Errorf("make sessions: %d refused by the map, %w", failed, err)
		}
	}
	return nil
}

// fill sets key and value to those of a session. No two sessions have the same key.
func (s *sessions) fill(n uint64) {
	const odd = 0x9e3779b97f4a7c15 // spreads numbers, each to another one
	binary.LittleEndian.PutUint64(s.key, n*odd)
	binary.LittleEndian.PutUint64(s.key[40:], n)
	binary.LittleEndian.PutUint64(s.value, n)
	binary.LittleEndian.PutUint64(s.value[168:], n^odd)
}

func (s *sessions) close() error { return s.feed.Close() }

// sameContent returns an error if two kernel maps differ, and the number of entries that
// the first one holds.
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
