package capture_test

import (
	"sync/atomic"
	"testing"

	"mapsync/internal/dataplane"
)

// workers run functions repeatedly on the busy CPU, each on its own thread.
type workers struct {
	stopped atomic.Bool
	done    []chan error
}

func (w *workers) start(t *testing.T, work func() error) {
	done := make(chan error, 1)
	w.done = append(w.done, done)
	go func() {
		unpin, err := dataplane.Pin(busyCPU)
		if err != nil {
			done <- err
			return
		}
		defer unpin()
		for err == nil && !w.stopped.Load() {
			err = work()
		}
		done <- err
	}()
}

func (w *workers) stop(t *testing.T) {
	t.Helper()
	w.stopped.Store(true)
	for _, done := range w.done {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	w.done = nil
}

// steer makes one CPU process all packets until the end of the test.
func steer(t *testing.T, cpu int) {
	t.Helper()
	restore, err := dataplane.SteerLoopback(cpu)
	if err != nil {
		skipUnsupported(t, err.Error())
	}
	t.Cleanup(func() {
		if err := restore(); err != nil {
			t.Error(err)
		}
	})
}
