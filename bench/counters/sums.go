package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/docs/examples/counters/bpf"
	"mapsync/internal/tool"
)

// The numbers of destinations of the check: few have a series each, all are more than the setting top.
const (
	fewDestinations = 10
	allDestinations = 50
	topSeries       = 20 // the setting top of the example
)

// sumsCheck compares what the sender has sent with what syncd exports.
type sumsCheck struct {
	net      *network
	node     *node
	services *ebpf.Map
	// sent has the bytes sent to each destination, and while those that were sent while syncd was stopped.
	sent    map[netip.Addr]uint64
	stopped uint64
}

// run sends to more destinations than there are series, also while syncd is stopped, and returns an error unless each sum
// is exact. The node is started and stopped.
func (s *sumsCheck) run(ctx context.Context) (err error) {
	s.sent = make(map[netip.Addr]uint64)
	if err := s.node.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.node.close()) }()
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"a series for each destination", s.fewAreExact},
		{"more destinations than series", s.allAreExact},
		{"restart of syncd", s.restart},
		{"after the restart", s.allAreExact},
		{"the map", s.mapIsExact},
	} {
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// send sends to the first destinations, to each another number of bytes.
func (s *sumsCheck) send(count int) (sum uint64, err error) {
	for i := range count {
		to := destination(i)
		n, err := s.net.send(to, 1+rand.IntN(200_000), 1+rand.IntN(40_000))
		s.sent[to.Addr()] += n
		sum += n
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// want returns the content of all series together.
func (s *sumsCheck) want() (sum uint64) {
	for _, n := range s.sent {
		sum += n
	}
	return sum - s.stopped
}

func (s *sumsCheck) fewAreExact(ctx context.Context) error {
	if _, err := s.send(fewDestinations); err != nil {
		return err
	}
	series, err := s.awaitSum(ctx)
	if err != nil {
		return err
	}
	for to, want := range s.sent {
		if got := series[to.String()]; got != want {
			return fmt.Errorf("series of %s: %d bytes were exported, %d were sent; all series: %v", to, got, want, series)
		}
	}
	return nil
}

func (s *sumsCheck) allAreExact(ctx context.Context) error {
	if _, err := s.send(allDestinations); err != nil {
		return err
	}
	series, err := s.awaitSum(ctx)
	if err != nil {
		return err
	}
	if len(series) > topSeries+1 {
		return fmt.Errorf("%d series were exported, at most %d are allowed", len(series), topSeries+1)
	}
	if series["other"] == 0 {
		return fmt.Errorf("the series of all others has 0 bytes, with %d destinations", len(s.sent))
	}
	return nil
}

// restart sends while syncd is stopped. The counters lack these bytes, and no others.
func (s *sumsCheck) restart(ctx context.Context) error {
	if err := s.node.close(); err != nil {
		return err
	}
	n, err := s.send(allDestinations)
	if err != nil {
		return err
	}
	s.stopped += n
	if err := s.node.start(ctx); err != nil {
		return err
	}
	_, err = s.awaitSum(ctx)
	return err
}

// mapIsExact compares the map, which also has the bytes that were sent while syncd was stopped.
func (s *sumsCheck) mapIsExact(context.Context) error {
	got := make(map[netip.Addr]uint64)
	var key bpf.AccountingServiceKey
	var value bpf.AccountingServiceValue
	entries := s.services.Iterate()
	for entries.Next(&key, &value) {
		got[ipv4(key.Daddr[0])] += value.Bytes
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read the map: %w", err)
	}
	for to, want := range s.sent {
		if got[to] != want {
			return fmt.Errorf("entries of %s: %d bytes were counted, %d were sent", to, got[to], want)
		}
	}
	return nil
}

// settled is the number of scans after which a sum that is too large would appear.
const settled = 2

// awaitSum waits until the exported sum is the wanted one, and returns the series if it stays so.
func (s *sumsCheck) awaitSum(ctx context.Context) (series map[string]uint64, err error) {
	want, got := s.want(), uint64(0)
	equal := 0
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if series, err = s.node.scrape(ctx); err != nil {
			return nil, err
		}
		got = 0
		for _, n := range series {
			got += n
		}
		switch {
		case got > want:
			return nil, s.explain(fmt.Errorf("%d bytes were exported, more than the %d that were sent", got, want), series)
		case got == want:
			if equal++; equal > settled {
				return series, nil
			}
		}
		if err := tool.Pause(ctx, scanInterval); err != nil {
			return nil, err
		}
	}
	return nil, s.explain(fmt.Errorf("%d bytes were exported within %s, %d were sent", got, limit, want), series)
}

// explain adds to an error whether the map has the bytes, and the series that differ.
func (s *sumsCheck) explain(err error, series map[string]uint64) error {
	counted := "the map has the bytes that were sent"
	if mapErr := s.mapIsExact(context.Background()); mapErr != nil {
		counted = mapErr.Error()
	}
	var differ []string
	for to, want := range s.sent {
		if got, ok := series[to.String()]; ok && got != want {
			differ = append(differ, fmt.Sprintf("%s: %d exported, %d sent", to, got, want))
		}
	}
	return fmt.Errorf("%w (%s; series that differ: %q)", err, counted, differ)
}

// ipv4 returns the address in the first word of a key.
func ipv4(word uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(word), byte(word >> 8), byte(word >> 16), byte(word >> 24)})
}
