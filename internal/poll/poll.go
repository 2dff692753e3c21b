// Package poll lets tests wait until a condition holds, and check that a condition continues to
// hold. It replaces sleeps, which are too short on a busy machine and too long on an idle one.
//
// The functions evaluate conditions in the goroutine of the caller. A condition may therefore end
// the test itself.
package poll

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mapsync/internal/busy"
)

// Limit is the time within which a condition of Eventually must hold. It is long for a busy
// machine. It is shorter than the slow fallbacks of syncd, for example retries after 30 s, so that
// a fallback cannot conceal a failure.
const Limit = 20 * time.Second

// factor returns how many times longer a task takes than on an idle machine. Tests replace it.
var factor = busy.Factor

// The pause between two checks is a 16th of the time since the first one, within these bounds. While a condition does not
// hold yet, the pause is at least as long as the check was, so that slow checks use at most half of the time.
const (
	minPause = 2 * time.Millisecond
	maxPause = 10 * time.Millisecond
)

// Lengthened returns a limit, multiplied by the number of tasks that want to run for each CPU at present. It is for tests
// that cannot wait by Within.
func Lengthened(limit time.Duration) time.Duration {
	return time.Duration(float64(limit) * factor())
}

// Eventually returns when ok returns true. It fails the test if ok returns false for Limit. The
// failure message contains what, which states the condition, and the results of explain.
func Eventually(t testing.TB, what string, ok func() bool, explain ...func() any) {
	t.Helper()
	Within(t, Limit, what, ok, explain...)
}

// Within is Eventually with another limit. It checks at least once at or after the limit. While more tasks want to run than the
// machine has CPUs, the limit is longer by that factor.
func Within(t testing.TB, limit time.Duration, what string, ok func() bool, explain ...func() any) {
	t.Helper()
	least := limit
	for began := time.Now(); ; {
		checked := time.Since(began)
		if ok() {
			return
		}
		if checked >= limit {
			limit = max(limit, Lengthened(least))
		}
		if checked >= limit {
			t.Fatalf("%s: not within %v%s", what, limit, explanation(explain))
		}
		pause(began, limit, time.Since(began)-checked)
	}
}

// Succeeds is Within for a check that returns an error while the condition does not hold. The failure message contains
// the last error, before the results of explain.
func Succeeds(t testing.TB, limit time.Duration, what string, check func() error, explain ...func() any) {
	t.Helper()
	var err error
	explain = append([]func() any{func() any { return err }}, explain...)
	Within(t, limit, what, func() bool { err = check(); return err == nil }, explain...)
}

// Stays returns after d if ok returns true at every check until then. It fails the test as soon as
// ok returns false. The first check is immediate, and the last one is at or after d. The failure
// message contains what, which states the condition, and the results of explain.
func Stays(t testing.TB, d time.Duration, what string, ok func() bool, explain ...func() any) {
	t.Helper()
	for began := time.Now(); ; {
		checked := time.Since(began)
		if !ok() {
			t.Fatalf("%s: false after %v, want true for %v%s", what, checked.Round(time.Millisecond), d, explanation(explain))
		}
		if checked >= d {
			return
		}
		pause(began, d, 0)
	}
}

// pause sleeps until the next check, for at least the given time, but not beyond the end of the limit.
func pause(began time.Time, limit, least time.Duration) {
	since := time.Since(began)
	time.Sleep(min(max(min(max(since/16, minPause), maxPause), least), limit-since))
}

// explanation returns the results of explain, each after a colon.
func explanation(explain []func() any) string {
	var text strings.Builder
	for _, fn := range explain {
		fmt.Fprintf(&text, ": %v", fn())
	}
	return text.String()
}
