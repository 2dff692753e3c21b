package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"mapsync/printable"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// removal holds the flags that forget and purge share.
type removal struct {
	connection
	yes, asJSON bool
}

func (r *removal) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.yes, "yes", false, "do not ask for confirmation (for scripts)")
	cmd.Flags().BoolVar(&r.asJSON, "json", false, "print JSON: the number of records of each map")
	r.bind(cmd)
	r.completeMap(cmd)
}

func newForget() *cobra.Command {
	var flags removal
	var owner string
	var force bool
	cmd := &cobra.Command{
		Use:   "forget --owner NODE [MAP]",
		Short: "Remove all records of a departed or misbehaving owner",
		Long: `Remove the records of every incarnation of a node, in one map or in all maps, from the tables and
the kernel maps of all nodes. This node replicates the removals as its own deletes. Run the command
on a node that is in sync and that may write the maps. If a load balancer still uses an entry, the
entry returns with the next write, as a record of that load balancer's node.
The daemon refuses a live owner unless --force is given. A live owner still sends its later writes.
The daemon logs the command with the user and process of the caller.
Exit code 0: removed. 1: the owner is live, or not confirmed. 2: wrong use: no such map or owner,
this node's own name, or no terminal to ask for confirmation and no --yes.`,
		Example: `  syncd forget --owner lb3
  syncd forget --owner lb3 ct_map --yes --json`,
		Args: maximumArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if owner == "" {
				return usageError{errors.New("forget needs --owner NODE: the name of the node whose records are to be removed")}
			}
			if len(args) == 1 && args[0] == "" {
				return usageError{errors.New("MAP is empty: give the name of a map, or leave it out for all maps")}
			}
			return flags.forget(cmd, owner, strings.Join(args, ""), force) // args has at most one element
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&owner, "owner", "", "node whose records are removed")
	flags.completeFlag(cmd, "owner", func(n *daemon.Names, _ []string) []string { return n.Owners })
	cmd.Flags().BoolVar(&force, "force", false, "remove the records of a live owner, too; its sessions end on all nodes, including the owner")
	return cmd
}

// forget removes the records of an owner from a map, or from all maps if name is empty, after a confirmation.
func (r *removal) forget(cmd *cobra.Command, owner, name string, force bool) error {
	of := cmp.Or(name, "all maps")
	if err := r.confirm(cmd, fmt.Sprintf("Remove all records of %s from %s, on every node? Their sessions end unless a load balancer still uses them.", owner, of)); err != nil {
		return err
	}
	done, err := r.client().Forget(cmd.Context(), owner, name, force)
	if err != nil {
		return err
	}
	return r.print(cmd.OutOrStdout(), &done)
}

func newPurge() *cobra.Command {
	var flags removal
	var unused time.Duration
	var force bool
	var all bool
	cmd := &cobra.Command{
		Use:   "purge MAP",
		Short: "Remove orphaned records and records that do not fit, or all records",
		Long: `Remove two kinds of records of a map from the tables and the kernel maps of all nodes: records
whose owner has left, and records that do not fit into this node's kernel map (NOT HELD in the
status of its peers), also those of live owners. This node replicates the removals as its own
deletes. Run the command on a node that is in sync, that may write the map, and that is not cut
off: the records of every node that it does not reach count as orphaned. If a load balancer still
uses an entry, the entry returns with the next write, as a record of that load balancer's node.
To remove only the records of one owner that has left, use "syncd forget". --all empties the map on
all nodes, live sessions included.
With --unused-for, remove instead records whose owner has left, and records that syncd has written on
this node after a takeover, if they were neither changed nor used for the duration. The daemon must have
observed uses for as long (takeover-expiry), or refuses. With --force, it compares with the last
change, and with the time at which it found that the owner had left: sessions in use may end.
The daemon logs the command with the user and process of the caller.
Exit code 0: removed, or there were none. 1: not confirmed, or uses are not visible. 2: wrong use: no
such map, or no terminal to ask for confirmation and no --yes.`,
		Example: `  syncd purge ct_map
  syncd purge ct_map --unused-for 1h
  syncd purge ct_map --yes --json
  syncd purge --all ct_map`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch given := cmd.Flags().Changed("unused-for"); {
			case given && all:
				return usageError{errors.New("give --all or --unused-for, not both")}
			case !given && force:
				return usageError{errors.New("--force needs --unused-for")}
			case !given:
				return flags.purge(cmd, args[0], all)
			case unused <= 0:
				return usageError{fmt.Errorf("--unused-for %s: give a duration above 0", unused)}
			}
			return flags.purgeUnused(cmd, args[0], unused, force)
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "empty the map on all nodes; all of its sessions end unless a load balancer still uses them")
	cmd.Flags().DurationVar(&unused, "unused-for", 0, "remove only records of departed owners that were neither changed nor used for so long")
	cmd.Flags().BoolVar(&force, "force", false, "with --unused-for: compare with the last change alone; sessions in use may end")
	return cmd
}

// purge removes orphaned records and records that do not fit, or all records, after a confirmation.
func (r *removal) purge(cmd *cobra.Command, name string, all bool) error {
	which, remove := "all orphaned records and all records that do not fit into this node's kernel map", (*daemon.Client).Purge
	if all {
		which, remove = "ALL records, those of live nodes included", (*daemon.Client).PurgeAll
	}
	if err := r.confirm(cmd, fmt.Sprintf("Remove from %s, on every node, %s? Their sessions end unless a load balancer still uses them.", name, which)); err != nil {
		return err
	}
	done, err := remove(r.client(), cmd.Context(), name)
	if err != nil {
		return err
	}
	return r.print(cmd.OutOrStdout(), &done)
}

// purgeUnused removes records of departed owners that were not used for a time, after a confirmation.
func (r *removal) purgeUnused(cmd *cobra.Command, name string, unused time.Duration, force bool) error {
	what := "neither changed nor used"
	if force {
		what = "not changed (uses are ignored)"
	}
	if err := r.confirm(cmd, fmt.Sprintf("Remove from %s, on every node, the records of departed owners that were %s for %s?", name, what, unused)); err != nil {
		return err
	}
	done, err := r.client().PurgeUnused(cmd.Context(), name, unused, force)
	if err != nil {
		return err
	}
	return r.print(cmd.OutOrStdout(), &done)
}

// errNotConfirmed means that the operator did not confirm the removal.
var errNotConfirmed = errors.New("not confirmed, nothing was removed")

// confirm asks the operator on the terminal for confirmation. With --yes it does not ask.
func (r *removal) confirm(cmd *cobra.Command, question string) error {
	if r.yes {
		return nil
	}
	if terminalOf(cmd.InOrStdin()) == nil {
		return usageError{errors.New("cannot ask for confirmation: the input is not a terminal (use --yes in scripts); nothing was removed")}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s\nType yes to go on: ", question)
	line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read confirmation: %w", err)
	}
	if strings.TrimSpace(line) != "yes" {
		return errNotConfirmed
	}
	return nil
}

// terminalOf returns the terminal that a stream is, also below the writer of execute, or nil.
func terminalOf(stream any) *os.File {
	if w, ok := stream.(*printable.Writer); ok {
		stream = w.Unwrap()
	}
	file, ok := stream.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return file
}

func (r *removal) print(out io.Writer, done *daemon.Removed) error {
	if r.asJSON {
		if err := json.NewEncoder(out).Encode(done); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
		return nil
	}
	if len(done.Maps) == 0 {
		_, err := fmt.Fprintln(out, "no records removed: no kernel map has appeared yet")
		return err
	}
	for _, m := range done.Maps {
		if _, err := fmt.Fprintf(out, "%s: %d records removed\n", m.Map, m.Records); err != nil {
			return fmt.Errorf("print result: %w", err)
		}
	}
	return nil
}

// maximumArgs is cobra.MaximumNArgs with a usage error.
func maximumArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := cobra.MaximumNArgs(n)(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}
