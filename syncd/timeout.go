package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// errTimeout is wrapped by the errors of waitFor and waitUntil after the timeout.
var errTimeout = errors.New("timeout")

// waitFor is waitUntil, and prints afterwards how long it took.
func waitFor(cmd *cobra.Command, timeout time.Duration, what string, ask func(context.Context) ([]string, error)) error {
	begun := time.Now()
	err := waitUntil(cmd, timeout, what, ask)
	if err == nil {
		fmt.Fprintf(cmd.OutOrStdout(), "%s after %s\n", what, time.Since(begun).Round(time.Millisecond))
	}
	return err
}

// temporary marks an error of ask that may end: what was asked for is missing.
type temporary struct{ error }

func (e temporary) Unwrap() error { return e.error }

// waitUntil calls ask until nothing is missing, and prints what is missing. It calls ask at least
// once. It returns an error of ask at once, unless the error is temporary. After the timeout, it returns the last one.
func waitUntil(cmd *cobra.Command, timeout time.Duration, what string, ask func(context.Context) ([]string, error)) error {
	out, begun := cmd.OutOrStdout(), time.Now()
	printed := begun
	for {
		missing, err := askWithin(cmd.Context(), timeout-time.Since(begun), ask)
		reason := errors.New(strings.Join(missing, "; "))
		switch {
		case err != nil && (errors.As(err, new(temporary)) || errors.Is(err, context.DeadlineExceeded)) && cmd.Context().Err() == nil:
			missing, reason = []string{err.Error()}, err
		case err != nil:
			return err
		case len(missing) == 0:
			return nil
		}
		if now := time.Now(); now.Sub(printed) >= progressInterval {
			printed = now
			printMissing(out, missing)
		}
		if time.Since(begun) >= timeout {
			return fmt.Errorf("wait until %s: %w of %s: %w", what, errTimeout, timeout, reason)
		}
		select {
		case <-cmd.Context().Done():
			return fmt.Errorf("wait until %s: %w", what, cmd.Context().Err())
		case <-time.After(min(askInterval, timeout-time.Since(begun))):
		}
	}
}

// minAnswerTime is the minimum time that a daemon has for one answer.
const minAnswerTime = time.Second

// askWithin calls ask once. The call ends after left, but not before minAnswerTime.
func askWithin(ctx context.Context, left time.Duration, ask func(context.Context) ([]string, error)) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, max(left, minAnswerTime))
	defer cancel()
	return ask(ctx)
}
