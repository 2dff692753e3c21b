// Command syncd replicates the BPF maps of a load balancer to its peers.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"mapsync/printable"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "devel"

// Exit codes. Every code other than 0 is a failure. Code 2 means that the command line or the
// settings cannot be used, and code 3 that the daemon does not answer, so that scripts can distinguish
// these cases from failed work.
const (
	exitFailed   = 1
	exitUsage    = 2
	exitNoAnswer = 3
)

// usageError marks an error of the command line or of the settings.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errReported ends a command with a failure after its output has given the reason.
var errReported = errors.New("reported already")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	code := execute(ctx, newRoot())
	stop()
	os.Exit(code)
}

// execute runs the command line of root and returns the exit code. No output has characters that a terminal obeys, because
// some texts come from other nodes and programs.
func execute(ctx context.Context, root *cobra.Command) int {
	root.SetOut(printable.NewWriter(root.OutOrStdout()))
	root.SetErr(printable.NewWriter(root.ErrOrStderr()))
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, errReported) {
		fmt.Fprintln(root.ErrOrStderr(), "syncd:", err)
	}
	return exitCode(err)
}

// exitCode returns the exit code of a command that ended with an error, or nil.
func exitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage), errors.Is(err, daemon.ErrUse), errors.Is(err, daemon.ErrConfig):
		return exitUsage
	case errors.Is(err, daemon.ErrNotRunning):
		return exitNoAnswer
	}
	return exitFailed
}

// exitCodes is the table of exit codes in --help.
const exitCodes = `Exit codes:
  0  success: done, ready, or in sync
  1  failed: not ready, not handed over in time, something differs
  2  wrong use: a command, flag, argument, map or setting that cannot be used
  3  the daemon does not answer: none is running, or it sends nothing within --timeout`

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "syncd",
		Short: "Replicate a load balancer's BPF maps to its peers",
		Long: `syncd runs next to an eBPF load balancer, firewall or NAT. It watches the hash maps that hold
connection state, sends every change to its peers, and applies the changes that it receives. If
a node fails, another node continues its connections.

` + exitCodes,
		Args:          noSuchCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newRun(), newCheck(), newMaps(), newProfiles(), newStatus(), newEvents(), newExplain(), newWaitReady(), newDrain(), newDump(), newWatch(), newDiff(), newResync(), newPause(), newResume(), newForget(), newPurge(), newClears(), newLatency(), newScans(), newReload(), newSupportBundle(), newNotify(), newSchema(), newVersion())
	refuseExtraArguments(root)
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	completeFlags(root)
	return root
}

// refuseExtraArguments makes cobra's own commands refuse unknown arguments, like all other
// commands.
func refuseExtraArguments(root *cobra.Command) {
	root.SetHelpCommand(&cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Print the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usageError{fmt.Errorf("unknown command %q: `%s --help` lists them", strings.Join(args, " "), cmd.Root().Name())}
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
		ValidArgsFunction: completeCommand,
	})
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Example = "  syncd completion bash > /etc/bash_completion.d/syncd"
		c.Args, c.RunE = noSuchCommand, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		for _, shell := range c.Commands() {
			shell.Args = exactArgs(0)
		}
	}
}

// completeCommand completes the name of a command, whose first words are args.
func completeCommand(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	if about, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
		for _, sub := range about.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// noSuchCommand refuses arguments of a command that only has subcommands.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s has no command %q: `%s --help` lists them", cmd.CommandPath(), args[0], cmd.CommandPath())}
	}
	return nil
}

// notNegative returns a usage error for a negative timeout.
func notNegative(timeout time.Duration) error {
	if timeout < 0 {
		return usageError{fmt.Errorf("timeout %s is negative", timeout)}
	}
	return nil
}

// exactArgs is cobra.ExactArgs with a usage error.
func exactArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := cobra.ExactArgs(n)(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}
