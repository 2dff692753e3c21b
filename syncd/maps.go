package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"

	"github.com/spf13/cobra"
)

// hostMap is one map of this host in the output of `syncd maps --json`.
type hostMap struct {
	ID         uint32   `json:"id"`
	Name       string   `json:"name"`
	Type       string   `json:"type"`
	KeySize    int      `json:"key_size"`
	ValueSize  int      `json:"value_size"`
	MaxEntries int      `json:"max_entries"`
	Entries    int      `json:"entries"` // -1: unknown
	Pins       []string `json:"pins"`
	KeyType    string   `json:"key_type,omitempty"` // C types; empty: no BTF, or no permission to read it
	ValueType  string   `json:"value_type,omitempty"`
	Read       string   `json:"read,omitempty"`
	Write      string   `json:"write,omitempty"`
	Problem    string   `json:"problem,omitempty"` // why syncd cannot replicate the map
}

func newMaps() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "maps",
		Short: "List the hash maps and arrays on this host",
		Long: `List the hash maps and arrays on this host: whether syncd can replicate each map, and how it
would read and write the map. Listing needs CAP_SYS_ADMIN.`,
		Example: `  syncd maps
  syncd maps --json | jq -r '.[] | select(.problem == null) | .name'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			infos, err := kmap.List(cmd.Context())
			if err != nil {
				return err
			}
			list := make([]hostMap, len(infos))
			for i := range infos {
				list[i] = describe(&infos[i])
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(list)
			}
			return printMaps(cmd, list)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// describe opens the map briefly to find out which access methods it supports.
func describe(info *kmap.Info) hostMap {
	h := hostMap{
		ID: info.ID, Name: info.Name, Type: info.Type.String(),
		KeySize: info.KeySize, ValueSize: info.ValueSize,
		MaxEntries: info.MaxEntries, Entries: info.Entries, Pins: append([]string{}, info.Pins...),
	}
	if info.Unsupported != nil {
		h.Problem = info.Unsupported.Error()
		return h
	}
	if s, err := daemon.SchemaOf(info.Name, *info); err == nil && !s.Opaque {
		h.KeyType, h.ValueType = s.Key.Name, s.Value.Name
	}
	method, err := methodOf(info.ID)
	if err != nil {
		h.Problem = err.Error()
		return h
	}
	h.Read, h.Write = string(method.Read), string(method.Write)
	return h
}

func methodOf(id uint32) (kmap.AccessMethods, error) {
	m, err := kmap.Resolve(kmap.Ref{ID: id})
	if err != nil {
		return kmap.AccessMethods{}, err
	}
	defer m.Close()
	opened, err := kmap.Open(m, kmap.Options{})
	if err != nil {
		return kmap.AccessMethods{}, err
	}
	defer opened.Close()
	return opened.AccessMethods(), nil
}

func printMaps(cmd *cobra.Command, list []hostMap) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tNAME\tTYPE\tKEY\tVALUE\tENTRIES\tMAX\tREAD\tWRITE\tPINS")
	typed := func(name string, size int) string {
		if name == "" {
			return fmt.Sprint(size)
		}
		return fmt.Sprintf("%s (%d)", name, size)
	}
	for _, m := range list {
		entries := "?"
		if m.Entries >= 0 {
			entries = fmt.Sprint(m.Entries)
		}
		ways := m.Read + "\t" + m.Write
		if m.Problem != "" {
			ways = "-\t-"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", m.ID, m.Name, m.Type,
			typed(m.KeyType, m.KeySize), typed(m.ValueType, m.ValueSize), entries, m.MaxEntries, ways, strings.Join(m.Pins, " "))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print maps: %w", err)
	}
	for _, m := range list {
		if m.Problem != "" {
			fmt.Fprintf(cmd.OutOrStdout(), "map %d %s cannot be replicated: %s\n", m.ID, m.Name, m.Problem)
		}
	}
	return nil
}
