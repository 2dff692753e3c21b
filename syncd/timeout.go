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

// waitUntil calls ask until nothing is missing, and prints what is missing. It calls ask at least
// once. It returns an error of ask at once.
func waitUntil(cmd *cobra.Command, timeout time.Duration, what string, ask func(context.Context) ([]string, error)) error {
	out, begun := cmd.OutOrStdout(), time.Now()
	printed := begun
	for {
		missing, err := askWithin(cmd.Context(), timeout-time.Since(begun), ask)
		if errors.Is(err, context.DeadlineExceeded) && cmd.Context().Err() == nil {
			missing, err = []string{"syncd does not answer"}, nil
		}
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			return nil
		}
		if now := time.Now(); now.Sub(printed) >= progressInterval {
			printed = now
			printMissing(out, missing)
		}
		if time.Since(begun) >= timeout {
			return fmt.Errorf("wait until %s: %w of %s: %s", what, errTimeout, timeout, strings.Join(missing, "; "))
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
