package main

import (
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// entryFlags are the flags that dump and watch share.
type entryFlags struct {
	connection
	asJSON, raw bool
	query       daemon.EntryQuery
}

func (f *entryFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print one JSON object per line")
	cmd.Flags().BoolVar(&f.raw, "raw", false, "print keys and values as hex, in the bytes of the kernel map")
	cmd.Flags().StringArrayVar(&f.query.Where, "where", nil,
		"print only entries that meet this condition, such as dport=443, saddr=10.0.0.0/8 or state!=CT_CLOSED (repeatable)")
	f.bind(cmd)
	f.completeMap(cmd)
	f.completeCondition(cmd, "where")
}

// print requests the entries from the daemon and prints each one when it arrives.
func (f *entryFlags) print(cmd *cobra.Command, name string) error {
	f.query.Form, f.query.Text = daemon.FormText, !f.asJSON
	switch {
	case f.raw:
		f.query.Form = daemon.FormRaw
	case f.asJSON:
		f.query.Form = daemon.FormJSON
	}
	return f.client().WriteEntries(cmd.Context(), name, f.query, cmd.OutOrStdout())
}

func newDump() *cobra.Command {
	var flags entryFlags
	cmd := &cobra.Command{
		Use:   "dump MAP",
		Short: "Print the records of a map",
		Long: `Print the records of a replicated map, oldest change first: key, value, owner and time of the
change. An entry marked pending is not in this node's kernel map yet. The text output leaves out
fields that are zero; --json prints all fields.
Exit code 0: printed. 1: failed, the output is not complete. 2: wrong use, such as no such map or field.`,
		Example: `  syncd dump ct_map --where dport=443 --where saddr=10.0.0.0/8
  syncd dump ct_map --json | jq -r 'select(.owner == "lb1") | .key.saddr'
  syncd dump ct_map --tombstones`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return flags.print(cmd, args[0]) },
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&flags.query.Tombstones, "tombstones", false, "print tombstones, too")
	return cmd
}

func newWatch() *cobra.Command {
	flags := entryFlags{query: daemon.EntryQuery{Watch: true}}
	cmd := &cobra.Command{
		Use:   "watch MAP",
		Short: "Print the changes of a map as they happen",
		Long: `Print each change of a replicated map, made by this node or by a peer, until interrupted. If a key
changes faster than the output is read, it is printed once, with its newest value.

With --cluster, print a table of the counters of all nodes at each interval: the keys that increase
most, with their owners, sums and rates. Without --sum, the counters are the fields with the role sum.
Exit code 0: interrupted, or all tables are printed. 1: failed, such as a map that was removed.
2: wrong use, such as no such map or field.`,
		Example: `  syncd watch ct_map --where state=CT_ESTABLISHED
  syncd watch flows --cluster --interval 5s --sum bytes
  syncd watch ct_map --json | jq -c 'select(.deleted)'`,
		Args: exactArgs(1),
	}
	flags.add(cmd)
	tables := addClusterWatch(cmd, &flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if used, err := tables(cmd, args[0]); used {
			return err
		}
		return flags.print(cmd, args[0])
	}
	return cmd
}
