package daemon

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var errTest = errors.New("it fails")

// repeated is an operation that syncd repeats, and what it logs.
type repeated struct {
	failure, recovery string // messages
	// start returns a function that performs the operation once.
	start func(t *testing.T, log *slog.Logger) func(fail bool)
}

func repeatedOperations() map[string]repeated {
	return map[string]repeated{
		"removal of sums": {
			"failed to remove sums that do not change", "sums that do not change are removed again",
			func(_ *testing.T, log *slog.Logger) func(bool) {
				d := &drainSums{}
				return func(fail bool) {
					if fail {
						d.logExpiry(log, errTest)
					} else {
						d.logExpiry(log, nil)
					}
				}
			},
		},
		"interfaces": {
			"failed to watch network interfaces, retrying", "watching network interfaces again",
			func(t *testing.T, log *slog.Logger) func(bool) {
				l := &links{log: log}
				return func(fail bool) {
					ctx, cancel := context.WithCancel(t.Context())
					l.repeat(ctx, func(context.Context) error {
						defer cancel()
						if fail {
							return errTest
						}
						l.following()
						return nil
					})
				}
			},
		},
	}
}

// checkRepeated performs an operation that fails for an hour, recovers and fails again, then one that
// fails and succeeds alternately for an hour.
func checkRepeated(t *testing.T, log *strings.Builder, do func(fail bool), op *repeated) {
	t.Helper()
	const hour = int(time.Hour / time.Second)
	expect := func(when string, failures, recoveries int) {
		t.Helper()
		text := log.String()
		if f, r := strings.Count(text, op.failure), strings.Count(text, op.recovery); f != failures || r != recoveries {
			t.Errorf("%s: got %d lines of failures, %d of recoveries, want %d, %d\n%.2000s", when, f, r, failures, recoveries, text)
		}
	}
	repeat := func(n int, fail func(int) bool) {
		for i := range n {
			do(fail(i))
			time.Sleep(time.Second) // in the time of synctest
		}
	}
	repeat(10, func(int) bool { return false })
	expect("no failure", 0, 0)
	repeat(hour, func(int) bool { return true })
	expect("failures for an hour", 1, 0)
	repeat(hour, func(int) bool { return false })
	expect("recovery", 1, 1)
	repeat(100, func(int) bool { return true })
	expect("failure after the recovery", 2, 1)
	repeat(hour, func(i int) bool { return i%2 == 1 })
	text, most := log.String(), hour/int(failureLogInterval/time.Second)+2
	if f, r := strings.Count(text, op.failure), strings.Count(text, op.recovery); f > most || r > most || f < 10 {
		t.Errorf("alternate failures for an hour: got %d lines of failures, %d of recoveries, want 10 to %d", f, r, most)
	}
	if want := strings.Count(text, op.failure); strings.Count(text, "hint=") != want {
		t.Errorf("hints: got %d, want one in each of %d lines of failures", strings.Count(text, "hint="), want)
	}
}

func TestRepeatedFailuresAreLoggedOnce(t *testing.T) {
	for name, op := range repeatedOperations() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				checkRepeated(t, &log, op.start(t, slog.New(slog.NewTextHandler(&log, nil))), &op)
			})
		})
	}
}

func TestFailedNotificationsAreLoggedOnce(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "")
	socket := filepath.Join(t.TempDir(), "notify")
	conn := manager(t, socket)
	op := repeated{failure: "failed to notify the service manager", recovery: "service manager notified again"}
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		n := newNotifier(slog.New(slog.NewTextHandler(&log, nil)))
		checkRepeated(t, &log, func(fail bool) {
			if n.socket = socket; fail {
				n.socket = socket + ".none"
			}
			n.send(notifyWatchdog)
			if !fail {
				receive(t, conn, 10*time.Second)
			}
		}, &op)
	})
}

func TestLogLimitOfEachMap(t *testing.T) {
	var out strings.Builder
	l := newLogLimiter()
	log := slog.New(slog.NewTextHandler(&out, nil))
	for _, name := range []string{"a", "b"} {
		limited := l.separate().limitLog(log.With("map", name))
		for range 2 * logBurst {
			limited.Info("flood")
		}
		if n := strings.Count(out.String(), "map="+name); n != logBurst {
			t.Errorf("lines of map %s: got %d, want %d", name, n, logBurst)
		}
	}
	if got := l.held(); got != 2*logBurst {
		t.Errorf("suppressed lines: got %d, want %d", got, 2*logBurst)
	}
}
