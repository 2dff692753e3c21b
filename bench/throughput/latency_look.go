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

// looker looks for changes in a kernel map, at short intervals, and counts how long they
// took to get there. It looks each up by bpf(2), which costs about 1 µs. One that is nil
// looks for nothing.
type looker struct {
	m     *ebpf.Map
	every time.Duration

	batch []awaited // added, and not written yet

	mu      sync.Mutex // guards what follows
	fresh   []awaited
	waiting int // changes that have not arrived
	times   *hdrhistogram.Histogram

	stop chan struct{}
	done chan error
}

// awaited is a change that is looked for.
type awaited struct {
	key     key
	arrived func(*value) bool
	sent    int64 // CLOCK_MONOTONIC just before the write, ns
}

func newLooker(m *ebpf.Map, every time.Duration) *looker {
	return &looker{m: m, every: every, times: newHistogram(), stop: make(chan struct{}), done: make(chan error, 1)}
}

// begin comes before the first add of some changes that are written together.
func (l *looker) begin() {
	if l != nil {
		l.batch = l.batch[:0]
	}
}

// add has a key looked for until arrived says of its value that it is the new one.
func (l *looker) add(k *key, arrived func(*value) bool) {
	l.batch = append(l.batch, awaited{key: *k, arrived: arrived})
}

// written is called just before the changes that were added are written, and commit
// just after.
func (l *looker) written() {
	if l == nil {
		return
	}
	now := monotonic()
	for i := range l.batch {
		l.batch[i].sent = now
	}
}

func (l *looker) commit() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fresh = append(l.fresh, l.batch...)
	l.waiting += len(l.batch)
}

func (l *looker) start() {
	go func() {
		runtime.LockOSThread() // a thread that sleeps by itself is woken in time
		defer runtime.UnlockOSThread()
		l.done <- l.run()
	}()
}

func (l *looker) run() error {
	var pending []awaited
	for {
		select {
		case <-l.stop:
			return nil
		default:
		}
		l.mu.Lock()
		pending = append(pending, l.fresh...)
		l.fresh = l.fresh[:0]
		l.mu.Unlock()
		left := pending[:0]
		for i := range pending {
			there, err := l.look(&pending[i])
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

// look looks for one change and notes its arrival.
func (l *looker) look(a *awaited) (there bool, err error) {
	var v value
	err = l.m.Lookup(&a.key, &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && !a.arrived(&v) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a change at the peer: %w", err)
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

// settle waits until all that was written has arrived.
func (l *looker) settle() error {
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

// reset forgets the times that were counted.
func (l *looker) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times.Reset()
}

// result returns the times that were counted. It is good once settle has returned.
func (l *looker) result() *hdrhistogram.Histogram { return l.times }

func (l *looker) close() error {
	close(l.stop)
	return <-l.done
}

// sleep is for pauses that the runtime's timers, which round up to a millisecond, are
// too coarse for.
func sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal may end it early, and does no harm
}
