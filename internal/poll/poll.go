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
)

// Limit is the time within which a condition of Eventually must hold. It is long for a busy
// machine. It is shorter than the slow fallbacks of syncd, for example retries after 30 s, so that
// a fallback cannot conceal a failure.
const Limit = 20 * time.Second

// The pause between two checks is a 16th of the time since the first one, within these bounds.
const (
	minPause = 2 * time.Millisecond
	maxPause = 10 * time.Millisecond
)

// Eventually returns when ok returns true. It fails the test if ok returns false for Limit. The
// failure message contains what, which states the condition, and the results of explain.
func Eventually(t testing.TB, what string, ok func() bool, explain ...func() any) {
	t.Helper()
	Within(t, Limit, what, ok, explain...)
}

// Within is Eventually with another limit. It checks at least once at or after the limit.
func Within(t testing.TB, limit time.Duration, what string, ok func() bool, explain ...func() any) {
	t.Helper()
	for began := time.Now(); ; {
		checked := time.Since(began)
		if ok() {
			return
		}
		if checked >= limit {
			t.Fatalf("%s: not within %v%s", what, limit, explanation(explain))
		}
		pause(began, limit)
	}
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
		pause(began, d)
	}
}

// pause sleeps until the next check, but not beyond the end of the limit.
func pause(began time.Time, limit time.Duration) {
	since := time.Since(began)
	time.Sleep(min(max(since/16, minPause), maxPause, limit-since))
}

// explanation returns the results of explain, each after a colon.
func explanation(explain []func() any) string {
	var text strings.Builder
	for _, fn := range explain {
		fmt.Fprintf(&text, ": %v", fn())
	}
	return text.String()
}
