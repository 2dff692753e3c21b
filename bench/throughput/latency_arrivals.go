package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// arrivalPoller polls a kernel map for changes at short intervals and records their latencies. It
// looks each change up by bpf(2), which costs about 1 µs. A nil arrivalPoller polls for nothing.
type arrivalPoller struct {
	m     *ebpf.Map
	every time.Duration

	batch []expectedChange // added, and not yet written

	mu      sync.Mutex // protects the fields below
	added   []expectedChange
	waiting int // changes that have not arrived
	times   *hdrhistogram.Histogram

	stop chan struct{}
	done chan error
}

// expectedChange is a change that the poller looks up.
type expectedChange struct {
	key     key
	arrived func(*value) bool
	sent    int64 // CLOCK_MONOTONIC just before the write, ns
}

func newArrivalPoller(m *ebpf.Map, every time.Duration) *arrivalPoller {
	return &arrivalPoller{m: m, every: every, times: newHistogram(), stop: make(chan struct{}), done: make(chan error, 1)}
}

// begin starts a set of changes that are written together. It must be called before the first add.
func (l *arrivalPoller) begin() {
	if l != nil {
		l.batch = l.batch[:0]
	}
}

// add makes the poller look up a key until arrived reports that its value is the new one.
func (l *arrivalPoller) add(k *key, arrived func(*value) bool) {
	l.batch = append(l.batch, expectedChange{key: *k, arrived: arrived})
}

// markSent must be called immediately before the write of the added changes, and commit immediately
// after.
func (l *arrivalPoller) markSent() {
	if l == nil {
		return
	}
	now := monotonic()
	for i := range l.batch {
		l.batch[i].sent = now
	}
}

func (l *arrivalPoller) commit() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.added = append(l.added, l.batch...)
	l.waiting += len(l.batch)
}

func (l *arrivalPoller) start() {
	go func() {
		runtime.LockOSThread() // a thread that sleeps in the kernel wakes in time
		defer runtime.UnlockOSThread()
		l.done <- l.run()
	}()
}

func (l *arrivalPoller) run() error {
	var pending []expectedChange
	for {
		select {
		case <-l.stop:
			return nil
		default:
		}
		l.mu.Lock()
		pending = append(pending, l.added...)
		l.added = l.added[:0]
		l.mu.Unlock()
		left := pending[:0]
		for i := range pending {
			there, err := l.lookup(&pending[i])
			if err != nil {
				return err
			}
			if !there {
				left = append(left, pending[i])
			}
		}
		pending = left
		sleep(l.every)
	}
}

// lookup looks up one change and records its arrival.
func (l *arrivalPoller) lookup(a *expectedChange) (there bool, err error) {
	var v value
	err = l.m.Lookup(&a.key, &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && !a.arrived(&v) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up a change at the peer: %w", err)
	}
	took := monotonic() - a.sent
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
	if err := l.times.RecordValue(took); err != nil {
		return true, fmt.Errorf("count a change that took %s: %w", time.Duration(took), err)
	}
	return true, nil
}

// awaitAll waits until all written changes have arrived.
func (l *arrivalPoller) awaitAll() error {
	const patience = 30 * time.Second
	for began := time.Now(); ; sleep(time.Millisecond) {
		l.mu.Lock()
		waiting := l.waiting
		l.mu.Unlock()
		switch {
		case waiting == 0:
			return nil
		case time.Since(began) > patience:
			return fmt.Errorf("wait for changes at the peer: %d have not come in %s", waiting, patience)
		}
	}
}

// reset deletes the recorded latencies.
func (l *arrivalPoller) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times.Reset()
}

// result returns the recorded latencies. They are complete after awaitAll has returned.
func (l *arrivalPoller) result() *hdrhistogram.Histogram { return l.times }

func (l *arrivalPoller) close() error {
	close(l.stop)
	return <-l.done
}

// sleep is for pauses below the resolution of the runtime's timers, which round up to a
// millisecond.
func sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal may end it early, which is harmless
}
