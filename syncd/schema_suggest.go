package main

import (
	"encoding/json"
	"fmt"
	"io"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/suggest"

	"github.com/spf13/cobra"
)

func newSchemaSuggest() *cobra.Command {
	var flags schemaFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "suggest MAP|FILE.o",
		Short: "Suggest roles for the fields of a map",
		Long: `Print the setting field with a role for each field that seems to need one, and the reason: times of
the kernel's clocks, indexes of interfaces and network namespaces, which mean something else on
another node, and addresses and ports, which are printed as such. For the first three, name and
values must agree. If there are no entries, the name alone decides. The map should have been written
by the programs of this host only, because entries of peers have the values of their nodes.
` + schemaCodes,
		Example: `  syncd schema suggest ct_map
  syncd schema suggest /sys/fs/bpf/lb/ct_map --config /etc/mapsync/syncd.yaml`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := flags.find(args[0])
			if err != nil {
				return err
			}
			host, err := daemon.ThisHost()
			if err != nil {
				return err
			}
			var all []mapSuggestions
			for _, s := range list {
				found, err := flags.suggestions(args[0], s, host)
				if err != nil {
					return err
				}
				all = append(all, found)
			}
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(all)
			} else {
				err = printSuggestions(cmd.OutOrStdout(), all)
			}
			if err != nil {
				return fmt.Errorf("write suggestions: %w", err)
			}
			return nil
		},
	}
	flags.bind(cmd)
	completeObject(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// mapSuggestions are the suggestions for the fields of a map.
type mapSuggestions struct {
	Map     string               `json:"map"`
	Entries int                  `json:"entries"` // that were read
	Fields  []suggest.Suggestion `json:"fields"`
}

// suggestions returns the suggestions for the fields of a schema. what is the argument of the command.
func (f *schemaFlags) suggestions(what string, s *schema.Schema, host *suggest.Host) (mapSuggestions, error) {
	sample := suggest.NewSample(s, host)
	if !isObject(what) {
		node, err := config.Read(f.settings, nil)
		if err != nil {
			return mapSuggestions{}, usageError{err}
		}
		_, ref, err := mapRef(what, &node)
		if err != nil {
			return mapSuggestions{}, err
		}
		raw, err := kmap.Resolve(ref, kmap.AnyOwner)
		if err != nil {
			return mapSuggestions{}, fmt.Errorf("open map %s: %w", what, err)
		}
		defer raw.Close()
		if err := daemon.AddKernelEntries(raw, sample); err != nil {
			return mapSuggestions{}, fmt.Errorf("map %s: %w", what, err)
		}
	}
	list := sample.Suggestions()
	if list == nil {
		list = []suggest.Suggestion{}
	}
	return mapSuggestions{Map: s.Map, Entries: sample.Entries(), Fields: list}, nil
}

// printSuggestions prints the setting field in YAML, with a comment for each reason.
func printSuggestions(out io.Writer, all []mapSuggestions) error {
	none := true
	for _, m := range all {
		fmt.Fprintf(out, "# map %s: %d entries were read\n", m.Map, m.Entries)
		none = none && len(m.Fields) == 0
	}
	if none {
		_, err := fmt.Fprintln(out, "# no field seems to need a role")
		return err
	}
	fmt.Fprintln(out, "field:")
	for _, m := range all {
		for _, x := range m.Fields {
			reason := x.Reason
			switch {
			case x.Display:
				reason += "; for display only"
			case x.Wrong:
				reason = "another role than now: " + reason
			case x.Weak:
				reason += "; few values or none support it"
			}
			if _, err := fmt.Fprintf(out, "  # %s\n  - '%s:%s=%s'\n", reason, m.Map, x.Field, x.Roles); err != nil {
				return err
			}
		}
	}
	return nil
}
