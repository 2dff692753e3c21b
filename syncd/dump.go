package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// entryFlags are the flags that dump and watch share.
type entryFlags struct {
	socket      string
	asJSON, raw bool
	query       daemon.EntryQuery
}

func (f *entryFlags) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print one JSON object per line")
	cmd.Flags().BoolVar(&f.raw, "raw", false, "print keys and values as hex, in the bytes of the kernel map")
	cmd.Flags().StringArrayVar(&f.query.Where, "where", nil,
		"print only entries that meet this condition, such as dport=443, saddr=10.0.0.0/8 or state!=CT_CLOSED (repeatable)")
}

// print requests the entries from the daemon and prints each one when it arrives.
func (f *entryFlags) print(cmd *cobra.Command, name string) error {
	f.query.Form = daemon.FormText
	switch {
	case f.raw:
		f.query.Form = daemon.FormRaw
	case f.asJSON:
		f.query.Form = daemon.FormJSON
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	encoder := json.NewEncoder(out)
	err := daemon.NewClient(f.socket).Entries(cmd.Context(), name, f.query, func(e *daemon.Entry) error {
		var err error
		if f.asJSON {
			err = encoder.Encode(e)
		} else {
			err = printEntry(out, e)
		}
		if err == nil && f.query.Watch {
			err = out.Flush() // a watch prints each entry immediately
		}
		return err
	})
	if err != nil {
		return err
	}
	return out.Flush()
}

func newDump() *cobra.Command {
	var flags entryFlags
	cmd := &cobra.Command{
		Use:   "dump MAP",
		Short: "Print the records of a map",
		Long: `Print the records of a replicated map, oldest change first: key, value, owner and time of the
change. An entry marked pending is not in this node's kernel map yet. The text output leaves out
fields that are zero; --json prints all fields.`,
		Example: `  syncd dump ct_map --where dport=443 --where saddr=10.0.0.0/8
  syncd dump ct_map --json | jq -r 'select(.owner == "lb1") | .key.saddr'
  syncd dump ct_map --tombstones`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return flags.print(cmd, args[0]) },
	}
	flags.bind(cmd)
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
most, with their owners, sums and rates. Without --sum, the counters are the fields with the role sum.`,
		Example: `  syncd watch ct_map --where state=CT_ESTABLISHED
  syncd watch flows --cluster --interval 5s --sum bytes
  syncd watch ct_map --json | jq -c 'select(.deleted)'`,
		Args: exactArgs(1),
	}
	flags.bind(cmd)
	tables := addClusterWatch(cmd, &flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if used, err := tables(cmd, args[0]); used {
			return err
		}
		return flags.print(cmd, args[0])
	}
	return cmd
}

func printEntry(out io.Writer, e *daemon.Entry) error {
	key, value, err := e.Text()
	if err != nil {
		return err
	}
	if e.Deleted {
		value = "deleted"
	}
	if e.Expired {
		value = "expired"
	}
	note := ""
	if e.Pending {
		note = " pending"
	}
	_, err = fmt.Fprintf(out, "%s %s owner=%s changed=%s%s\n", key, value, e.Owner, changed(e.Changed), note)
	return err
}

// changed returns the time of a change, or "unknown" for an entry that is older than syncd.
func changed(at time.Time) string {
	if at.IsZero() {
		return "unknown"
	}
	return at.Format(time.RFC3339Nano)
}
