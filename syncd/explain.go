package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"mapsync/printable"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newExplain() *cobra.Command {
	var c connection
	var asJSON bool
	var where []string
	cmd := &cobra.Command{
		Use:   "explain MAP [KEY]",
		Short: "Show where an entry is, and why a node lacks it",
		Long: `Show what each node of the cluster has of an entry: its record, the owner and time of the last change,
whether the kernel map has the same, and the reasons if not. KEY is a key as syncd dump prints it.
--where selects up to 10 entries by conditions instead.
Exit code 0: the kernel maps of all nodes have it, or no record or kernel map has it live. 1: some node
lacks it, has another value, or does not answer, or no node has the key. 2: wrong use, such as no
such map or field.`,
		Example: `  syncd explain ct_map '{saddr=10.0.0.1 daddr=10.0.0.9 sport=4242 dport=443 proto=6}'
  syncd explain ct_map --where sport=4242 --where dport=443`,
		Args: func(cmd *cobra.Command, args []string) error {
			if n := len(args); n == 0 || n > 2 || (n == 2) == (len(where) > 0) {
				return usageError{errors.New("name a map, and either a key or conditions: syncd explain MAP KEY, or syncd explain MAP --where CONDITION")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			list, more, err := explain(cmd, c.client(), args, where)
			if err != nil {
				return err
			}
			return list.report(cmd.OutOrStdout(), more, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object for each entry")
	cmd.Flags().StringArrayVar(&where, "where", nil, "explain entries that meet this condition, such as dport=443 (repeatable)")
	c.bind(cmd)
	c.completeMap(cmd)
	c.completeCondition(cmd, "where")
	return cmd
}

// nodeKey is what a node has of a key, or the reason if it does not answer.
type nodeKey struct {
	Node  string `json:"node"`
	Error string `json:"error,omitempty"`
	*daemon.ExplainedKey
}

// explanation is what all nodes have of a key.
type explanation struct {
	Key   string    `json:"key"`
	Nodes []nodeKey `json:"nodes"`
}

// explanations are those of all keys of a question.
type explanations []explanation

// explain asks all nodes. more is true if more keys meet the conditions than are explained.
func explain(cmd *cobra.Command, client *daemon.Client, args, where []string) (list explanations, more bool, err error) {
	q := daemon.ExplainQuery{Keys: args[1:]}
	if len(where) > 0 {
		found, err := client.ClusterExplain(cmd.Context(), args[0], daemon.ExplainQuery{Where: where})
		if err != nil {
			return nil, false, err
		}
		if q.Keys, more = keysOf(&found); len(q.Keys) == 0 {
			return nil, false, nil
		}
	}
	a, err := client.ClusterExplain(cmd.Context(), args[0], q)
	if err != nil {
		return nil, false, err
	}
	for _, key := range q.Keys {
		list = append(list, explanation{Key: key})
	}
	for _, n := range a.Nodes {
		x, err := explanationOf(&n)
		for i := range list {
			k := nodeKey{Node: n.Node, Error: err}
			if j := slices.IndexFunc(x.Keys, func(e daemon.ExplainedKey) bool { return e.Key == list[i].Key }); j >= 0 {
				k.ExplainedKey = &x.Keys[j]
			} else if err == "" {
				k.Error = "its answer lacks the key"
			}
			list[i].Nodes = append(list[i].Nodes, k)
		}
	}
	return list, more, nil
}

// explanationOf decodes the answer of a node, or returns why there is none.
func explanationOf(n *daemon.NodeAnswer) (x daemon.Explanation, failure string) {
	if failure = decodeAnswer(n, &x); failure != "" {
		return daemon.Explanation{}, failure
	}
	return x, ""
}

// keysOf returns the keys of all answers, sorted.
func keysOf(a *daemon.ClusterAnswer) (keys []string, more bool) {
	for i := range a.Nodes {
		x, _ := explanationOf(&a.Nodes[i])
		more = more || x.More
		for j := range x.Keys {
			keys = append(keys, x.Keys[j].Key)
		}
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	if more = more || len(keys) > daemon.MaxExplained; len(keys) > daemon.MaxExplained {
		keys = keys[:daemon.MaxExplained]
	}
	return keys, more
}

// report prints the explanations. It returns errReported if a node lacks an entry or does not answer.
func (l explanations) report(out io.Writer, more, asJSON bool) error {
	ok := len(l) > 0
	encoder := json.NewEncoder(out)
	for i := range l {
		ok = l[i].held() && ok
		err := error(nil)
		if asJSON {
			err = encoder.Encode(&l[i])
		} else {
			if i > 0 {
				fmt.Fprintln(out)
			}
			err = l[i].print(out)
		}
		if err != nil {
			return fmt.Errorf("print explanation: %w", err)
		}
	}
	if !asJSON && len(l) == 0 {
		fmt.Fprintln(out, "no node has a record that meets the conditions")
	}
	if !asJSON && more {
		fmt.Fprintf(out, "\nonly the first %d entries are explained: give more conditions\n", daemon.MaxExplained)
	}
	if !ok {
		return errReported
	}
	return nil
}

// held reports whether all nodes have the entry with one version, or all have its end.
func (e *explanation) held() bool {
	known := false
	for i := range e.Nodes {
		n, first := &e.Nodes[i], &e.Nodes[0]
		if n.ExplainedKey == nil || first.ExplainedKey == nil {
			return false
		}
		live, want := n.Record == daemon.RecordLive, daemon.KernelAbsent
		if live {
			want = daemon.KernelSame
		}
		expired := n.Record == daemon.RecordExpired // a kernel map may still hold it
		if n.Kernel != want && !expired || live != (first.Record == daemon.RecordLive) || live && n.Version != first.Version {
			return false
		}
		known = known || n.Record != daemon.RecordNone
	}
	return known
}

func (e *explanation) print(out io.Writer) error {
	wrap(out, printable.Text("key "+e.Key))
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NODE\tRECORD\tKERNEL MAP\tOWNER\tCHANGED")
	for i := range e.Nodes {
		n := &e.Nodes[i]
		if n.ExplainedKey == nil {
			fmt.Fprintf(w, "%s\tNO ANSWER\t-\t-\t-\n", printable.Text(n.Node))
			continue
		}
		owner, at := "-", "-"
		if n.Record != daemon.RecordNone {
			owner, at = printable.Text(n.Owner), changed(n.Changed)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", printable.Text(n.Node), printable.Text(string(n.Record)), printable.Text(string(n.Kernel)), owner, at)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range e.Nodes {
		for _, line := range e.Nodes[i].lines() {
			wrap(out, printable.Text(e.Nodes[i].Node+": "+line))
		}
	}
	return nil
}

// lines returns what the table does not have.
func (n *nodeKey) lines() (list []string) {
	if n.ExplainedKey == nil {
		return []string{"no answer: " + n.Error}
	}
	if n.Value != "" {
		list = append(list, "record "+n.Value)
	}
	if n.KernelValue != "" {
		list = append(list, "kernel map "+n.KernelValue)
	}
	list = append(list, n.Reasons...)
	for i := range n.Events {
		e := nodeEvent{Event: n.Events[i]}
		list = append(list, "event "+strings.TrimSpace(e.line()))
	}
	return list
}
