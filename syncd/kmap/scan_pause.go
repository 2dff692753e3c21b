package kmap

import (
	"context"
	"time"
)

// Pause stops all scans of the budget, urgent ones included, until a time or until Resume. A scan in progress
// stops within one chunk, and continues afterwards.
func (b *ScanBudget) Pause(until time.Time) { b.setPause(until) }

// Resume ends a pause.
func (b *ScanBudget) Resume() { b.setPause(time.Time{}) }

func (b *ScanBudget) setPause(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pausedUntil = until
	if b.pauseChanged != nil {
		close(b.pauseChanged)
	}
	b.pauseChanged = make(chan struct{})
}

// PausedUntil returns the end of the pause, or the zero time if scans are not paused.
func (b *ScanBudget) PausedUntil() time.Time {
	until, _ := b.pause()
	return until
}

// pause returns the end of the pause, zero if there is none, and a channel that is closed when it changes.
func (b *ScanBudget) pause() (until time.Time, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.pausedUntil.After(time.Now()) {
		return b.pausedUntil, b.pauseChanged
	}
	return time.Time{}, nil
}

// await pauses for the work since the last lap of a meter, unless that pause is below the shortest one, and until
// scans are not paused.
func (b *ScanBudget) await(ctx context.Context, m *meter) error {
	delay := b.spend(time.Since(budgetClockStart), m.lap())
	if delay < minPauseBusy && b.PausedUntil().IsZero() {
		return ctx.Err()
	}
	m.stop() // the pause does not need the thread
	defer m.start()
	pause(ctx, delay, nil)
	b.awaitResumed(ctx)
	return ctx.Err()
}

// awaitResumed returns when scans are not paused or ctx is done.
func (b *ScanBudget) awaitResumed(ctx context.Context) {
	for until, changed := b.pause(); !until.IsZero() && ctx.Err() == nil; until, changed = b.pause() {
		pause(ctx, time.Until(until), changed)
	}
}
