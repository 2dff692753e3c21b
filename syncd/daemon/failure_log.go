package daemon

import (
	"sync"
	"time"
)

// failureLogInterval is the minimum time between two log lines about failures of one operation.
const failureLogInterval = 30 * time.Second

// failureLog limits the log lines of an operation that is repeated while it fails: one line for each
// failure that lasts, and one line for its end. An operation that fails and succeeds alternately logs at
// most two lines in failureLogInterval.
type failureLog struct {
	mu       sync.Mutex
	logged   bool      // the present failure has a line
	loggedAt time.Time // time of the last line about a failure
}

// failed reports whether to log a failure.
func (f *failureLog) failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); !f.logged && (f.loggedAt.IsZero() || now.Sub(f.loggedAt) >= failureLogInterval) {
		f.logged, f.loggedAt = true, now
		return true
	}
	return false
}

// succeeded reports whether to log the end of a failure.
func (f *failureLog) succeeded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.logged
	f.logged = false
	return was
}
