package poll

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestMain(m *testing.M) {
	factor = func() float64 { return 1 }
	os.Exit(m.Run())
}

// TestWithinOnBusyMachine checks that the limit grows with the load of the machine.
func TestWithinOnBusyMachine(t *testing.T) {
	defer func(was func() float64) { factor = was }(factor)
	synctest.Test(t, func(t *testing.T) {
		for load, limit := range map[float64]time.Duration{1: time.Second, 4: 4 * time.Second} {
			factor = func() float64 { return load }
			for _, holds := range []time.Duration{limit, limit + 1} {
				failure := ""
				if holds > limit {
					failure = "n1 is ready: not within " + limit.String()
				}
				ok := after(holds, false)
				check(t, fmt.Sprintf("load %g, condition that holds after %v", load, holds), func(t testing.TB) {
					Within(t, time.Second, "n1 is ready", ok)
				}, failure, limit, limit)
			}
		}
	})
}

// recorder is a test that records its failure.
type recorder struct {
	testing.TB
	helper  bool
	failure string
}

func (r *recorder) Helper() { r.helper = true }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// run calls fn with a recorder and returns it, the duration of the call, and whether fn returned.
func run(fn func(testing.TB)) (r *recorder, took time.Duration, returned bool) {
	r = &recorder{}
	began, ended := time.Now(), make(chan struct{})
	go func() {
		defer close(ended)
		fn(r)
		returned = true
	}()
	<-ended
	return r, time.Since(began), returned
}

// after returns a condition that changes from the given value after d.
func after(d time.Duration, value bool) func() bool {
	began := time.Now()
	return func() bool { return (time.Since(began) < d) == value }
}

func check(t *testing.T, name string, fn func(testing.TB), failure string, least, most time.Duration) {
	t.Helper()
	r, took, returned := run(fn)
	if r.failure != failure || returned != (failure == "") || !r.helper {
		t.Errorf("%s: got failure %q, returned %t, helper %t, want failure %q", name, r.failure, returned, r.helper, failure)
	}
	if took < least || took > most {
		t.Errorf("%s: got an end after %v, want %v to %v", name, took, least, most)
	}
}

// TestWithin checks the end of a wait with a condition that holds at different times.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := func() any { return "state 3" }
		for _, test := range []struct {
			holds       time.Duration
			failure     string
			least, most time.Duration
		}{
			{0, "", 0, 0},
			{time.Millisecond, "", minPause, minPause},
			{500 * time.Millisecond, "", 500 * time.Millisecond, 500*time.Millisecond + maxPause},
			{time.Second, "", time.Second, time.Second}, // the last check is at the limit
			{time.Second + 1, "n1 is ready: not within 1s: state 3", time.Second, time.Second},
			{time.Hour, "n1 is ready: not within 1s: state 3", time.Second, time.Second},
		} {
			ok := after(test.holds, false)
			check(t, "condition that holds after "+test.holds.String(),
				func(t testing.TB) { Within(t, time.Second, "n1 is ready", ok, state) }, test.failure, test.least, test.most)
		}
	})
}

// TestWithinSlowCheck verifies that a condition has a chance after the limit if an earlier check
// took longer than the limit.
func TestWithinSlowCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		check(t, "slow first check", func(t testing.TB) {
			Within(t, time.Second, "second call", func() bool { calls++; time.Sleep(time.Minute); return calls == 2 })
		}, "", 2*time.Minute, 2*time.Minute)
	})
}

// TestWithinPausesAfterSlowChecks verifies that slow checks use at most half of the time.
func TestWithinPausesAfterSlowChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		check(t, "checks of 100 ms", func(t testing.TB) {
			Within(t, time.Second, "n1 is ready", func() bool { calls++; time.Sleep(100 * time.Millisecond); return false })
		}, "n1 is ready: not within 1s", 1100*time.Millisecond, 1100*time.Millisecond)
		if calls != 6 {
			t.Errorf("checks of 100 ms within 1 s: got %d, want 6", calls)
		}
	})
}

// TestSucceeds checks that the last error is in the failure message, and that a check without an error ends the wait.
func TestSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for holds, failure := range map[time.Duration]string{time.Second: "", time.Hour: "n1 is ready: not within 1s: 1s passed: state 3"} {
			began, ok := time.Now(), after(holds, false)
			check(t, "condition that holds after "+holds.String(), func(t testing.TB) {
				Succeeds(t, time.Second, "n1 is ready", func() error {
					if !ok() {
						return fmt.Errorf("%v passed", time.Since(began))
					}
					return nil
				}, func() any { return "state 3" })
			}, failure, time.Second, time.Second)
		}
	})
}

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for holds, failure := range map[time.Duration]string{Limit: "", Limit + 1: "n1 is ready: not within 20s: a: 2"} {
			ok := after(holds, false)
			check(t, "condition that holds after "+holds.String(), func(t testing.TB) {
				Eventually(t, "n1 is ready", ok, func() any { return "a" }, func() any { return 2 })
			}, failure, Limit, Limit)
		}
	})
}

// TestStays checks that a condition must hold for the whole time, and fails when it ends.
func TestStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := func() any { return "state 3" }
		for _, test := range []struct {
			holds   time.Duration
			failure string
			end     time.Duration
		}{
			{time.Hour, "", time.Second},
			{time.Second + 1, "", time.Second},
			{time.Second, "n1 is ready: false after 1s, want true for 1s: state 3", time.Second}, // the last check is at the end
			{3 * time.Millisecond, "n1 is ready: false after 4ms, want true for 1s: state 3", 4 * time.Millisecond},
			{0, "n1 is ready: false after 0s, want true for 1s: state 3", 0},
		} {
			ok := after(test.holds, true)
			check(t, "condition that holds for "+test.holds.String(),
				func(t testing.TB) { Stays(t, time.Second, "n1 is ready", ok, state) }, test.failure, test.end, test.end)
		}
	})
}

// TestStaysChecksOften verifies that a short violation is detected.
func TestStaysChecksOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ok := func() bool {
			since := time.Since(began)
			return since < 500*time.Millisecond || since >= 500*time.Millisecond+maxPause
		}
		r, took, _ := run(func(t testing.TB) { Stays(t, time.Second, "n1 is ready", ok) })
		if r.failure == "" || took < 500*time.Millisecond || took > 500*time.Millisecond+maxPause {
			t.Errorf("violation of %v: got failure %q after %v, want one when it begins", maxPause, r.failure, took)
		}
	})
}
