package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"mapsync/printable"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf/rlimit"
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
	// Undetected are the programs whose writes only scans find, with type and id, although hooks detect other programs.
	Undetected []string `json:"undetected_programs,omitempty"`
}

func newMaps() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "maps",
		Short: "List the maps on this host",
		Long: `List the maps on this host: whether syncd can replicate each map, how it would read and write the
map, and the programs whose writes to the map the hooks of --attach auto do not detect. The list
leaves out buffers of events, arrays of programs, and the arrays of variables and of syncd.
Listing needs CAP_SYS_ADMIN.
Exit code 0: listed. 1: the maps cannot be listed. 2: wrong use.`,
		Example: `  syncd maps
  syncd maps --json | jq -r '.[] | select(.problem == null) | .name'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = rlimit.RemoveMemlock() // if that fails on a kernel before 5.11, the hooks may fail, too
			hooks := capture.Probe(capture.AttachAuto)[0]
			list, err := listMaps(cmd.Context(), &hooks)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(list)
			}
			return printMaps(cmd.OutOrStdout(), list, &hooks)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// listMaps describes the maps of this host. hooks is the probe of the attach method.
func listMaps(ctx context.Context, hooks *capture.ProbeResult) ([]hostMap, error) {
	infos, _, err := kmap.List(ctx)
	if err != nil {
		return nil, err
	}
	c := config.Default()
	covered, err := daemon.CoverMaps(ctx, infos, hooks, &c)
	if err != nil {
		return nil, err
	}
	list := make([]hostMap, len(infos))
	for i := range infos {
		list[i] = describe(&infos[i])
		list[i].Undetected = covered[i].Undetected
	}
	return list, nil
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

// noHooks is printed below the maps if no hook works.
const noHooks = "hooks are unavailable: only scans find the writes to these maps (run `syncd check` for the reason)"

// printMaps prints the maps, and below them their problems.
func printMaps(out io.Writer, list []hostMap, hooks *capture.ProbeResult) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
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
			typed(m.KeyType, m.KeySize), typed(m.ValueType, m.ValueSize), entries, m.MaxEntries, ways, printable.Text(strings.Join(m.Pins, " ")))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print maps: %w", err)
	}
	for _, m := range list {
		printMapProblems(out, m.ID, m.Name, m.Problem, m.Undetected)
	}
	if hooks.Err != nil {
		fmt.Fprintln(out, noHooks)
	}
	return nil
}
