package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"mapsync/printable"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"

	"github.com/spf13/cobra"
)

func newNotify() *cobra.Command {
	var c connection
	n := notifier{interval: time.Second, limit: 30 * time.Second}
	cmd := &cobra.Command{
		Use:   "notify",
		Short: "Run commands when the node becomes ready or not ready, and when problems begin",
		Long: `Run until interrupted, and run a command with /bin/sh when the node becomes ready or not ready, and
for each problem that begins, except notices. The state at the start counts as a change. A daemon that
does not answer is not ready. Only the latest state counts if it changes while a command runs.
Commands find MAPSYNC_NODE, MAPSYNC_STATE (ready, not-ready or problem) and MAPSYNC_TEXT in their
environment, and for problems MAPSYNC_PROBLEM, MAPSYNC_SEVERITY, MAPSYNC_MAP, MAPSYNC_PEER and
MAPSYNC_REMEDY. A command that fails is reported on standard error.
It needs no privilege but access to the control socket: run it as the user of the daemon.
Exit code 0: interrupted. 1: failed. 2: wrong use.`,
		Example: `  syncd notify --on-ready 'ip address add 192.0.2.1/32 dev lo' \
    --on-not-ready 'ip address del 192.0.2.1/32 dev lo'
  syncd notify --on-problem 'logger -t mapsync "$MAPSYNC_PROBLEM: $MAPSYNC_TEXT"'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case n.onReady+n.onNotReady+n.onProblem == "":
				return usageError{errors.New("give a command: --on-ready, --on-not-ready or --on-problem")}
			case n.interval <= 0 || n.limit <= 0:
				return usageError{errors.New("--interval and --command-timeout: give a time above 0")}
			}
			n.client, n.out, n.failed = c.client(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			n.run(cmd.Context())
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&n.onReady, "on-ready", "", "`COMMAND` when the node becomes ready")
	f.StringVar(&n.onNotReady, "on-not-ready", "", "`COMMAND` when the node is no longer ready, or syncd does not answer")
	f.StringVar(&n.onProblem, "on-problem", "", "`COMMAND` when a problem begins")
	f.DurationVar(&n.interval, "interval", n.interval, "time between two looks at the daemon")
	f.DurationVar(&n.limit, "command-timeout", n.limit, "time after which a command is killed")
	c.bindFlags(cmd)
	return cmd
}

// notifier runs commands for changes of a daemon.
type notifier struct {
	onReady, onNotReady, onProblem string
	interval, limit                time.Duration
	client                         *daemon.Client
	out, failed                    io.Writer

	seen  bool // ready has a state
	ready bool
	node  string
	known map[string]bool // the problems of the last answer
}

func (n *notifier) run(ctx context.Context) {
	for {
		n.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(n.interval):
		}
	}
}

// look asks the daemon once, and runs the commands for what has changed.
func (n *notifier) look(ctx context.Context) {
	s, err := n.client.Status(ctx)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		n.state(ctx, false, err.Error())
		return
	}
	n.node = s.Node
	n.state(ctx, s.Ready, strings.Join(s.NotReady, "; "))
	known := make(map[string]bool)
	for i := range s.Problems {
		p := &s.Problems[i]
		key := strings.Join([]string{p.ID, p.Map, p.Peer, p.Subject}, "\x00")
		if known[key] = true; !n.known[key] && p.Severity != problem.Notice {
			n.execute(ctx, n.onProblem, "problem", p.Text, "MAPSYNC_PROBLEM="+p.ID, "MAPSYNC_SEVERITY="+string(p.Severity), "MAPSYNC_MAP="+p.Map,
				"MAPSYNC_PEER="+p.Peer, "MAPSYNC_REMEDY="+printable.Text(problem.OneLine(p.Remedy)))
		}
	}
	n.known = known
}

// state runs the command for the readiness if it has changed.
func (n *notifier) state(ctx context.Context, ready bool, text string) {
	if n.seen && ready == n.ready {
		return
	}
	if n.seen, n.ready = true, ready; ready {
		n.execute(ctx, n.onReady, "ready", text)
	} else {
		n.execute(ctx, n.onNotReady, "not-ready", text)
	}
}

// execute runs a command, unless it is "". Texts of peers are in its environment only: the shell does not read them as commands.
func (n *notifier) execute(ctx context.Context, command, state, text string, environment ...string) {
	if command == "" {
		return
	}
	limited, cancel := context.WithTimeout(ctx, n.limit)
	defer cancel()
	cmd := exec.CommandContext(limited, "/bin/sh", "-c", command)
	cmd.WaitDelay = time.Second // for children that keep the output open
	cmd.Stdout, cmd.Stderr = n.out, n.failed
	cmd.Env = append(os.Environ(), "MAPSYNC_NODE="+n.node, "MAPSYNC_STATE="+state, "MAPSYNC_TEXT="+printable.Text(problem.OneLine(text)))
	cmd.Env = append(cmd.Env, environment...)
	if err := cmd.Run(); err != nil && ctx.Err() == nil {
		wrap(n.failed, fmt.Sprintf("syncd: the command for %s has failed: %v", state, err))
	}
}
