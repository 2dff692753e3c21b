package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/drained"
	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/similar"

	"github.com/spf13/cobra"
)

func newSchema() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Show or export the types of a map's entries, or suggest roles",
		Long: `Show how syncd reads and sends the entries of a map, according to BTF: the BTF of a map on this
host, or of the maps in a BPF object file.`,
		Example: `  syncd schema show ct_map
  syncd schema suggest ct_map
  syncd schema export ct_map > ct_map.proto`,
	}
	cmd.Args = noSuchCommand
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(newSchemaShow(), newSchemaExport(), newSchemaSuggest())
	return cmd
}

// schemaCodes are the exit codes in the help of the commands.
const schemaCodes = "Exit code 0: printed or written. 1: the types cannot be read. 2: wrong use, such as no such map or file."

// schemaFlags select a schema.
type schemaFlags struct {
	name, settings string
	fields         []string
}

func (f *schemaFlags) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "map", "", "map of the object file, if it has several")
	cmd.Flags().StringVar(&f.settings, "config", "", "settings `file` of a node, whose map, field and drain-sums apply")
	cmd.Flags().StringArrayVar(&f.fields, "field", nil, config.FieldUsage)
}

func newSchemaShow() *cobra.Command {
	var flags schemaFlags
	cmd := &cobra.Command{
		Use:   "show MAP|FILE.o",
		Short: "Show the fields of a map's keys and values",
		Long: `Show each field of a map's key and value: its offset, its C type, how it is sent, and its roles.
Decl tags in the load balancer's source (mapsync:ROLE) or --field set the roles. MAP is name:N,
pin:PATH or id:ID. Reading a map's types needs CAP_SYS_ADMIN.
` + schemaCodes,
		Example: `  syncd schema show ct_map
  syncd schema show lb.o --map ct_map
  syncd schema show /sys/fs/bpf/lb/ct_map --field ct_map:last_used=ktime,volatile`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := flags.find(args[0])
			if err != nil {
				return err
			}
			for i, s := range list {
				if i > 0 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				if err := export.Table(cmd.OutOrStdout(), s); err != nil {
					return fmt.Errorf("show schema: %w", err)
				}
			}
			return nil
		},
	}
	flags.bind(cmd)
	completeObject(cmd)
	return cmd
}

func newSchemaExport() *cobra.Command {
	var flags schemaFlags
	var output string
	cmd := &cobra.Command{
		Use:   "export MAP|FILE.o",
		Short: "Write a .proto file for programs that read a map's changes",
		Long: `Write a documented proto3 file with the messages of the map's key, value and changes, and the
service that streams them. With this file and a gRPC client, a program can receive the changes of
the map from any node. docs/examples has such a program. The file contains a checksum of the types.
The program compares it with that of the node's types. It is the same only if the settings field
and drain-sums are the same: give the settings file of the node with --config.
` + schemaCodes,
		Example: `  syncd schema export ct_map --config /etc/mapsync/syncd.yaml > ct_map.proto
  syncd schema export lb.o --map ct_map`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := flags.find(args[0])
			if err != nil {
				return err
			}
			if len(list) > 1 {
				names := make([]string, len(list))
				for i, s := range list {
					names[i] = s.Map
				}
				return usageError{fmt.Errorf("%s has several maps, pick one with --map: %s", args[0], strings.Join(names, ", "))}
			}
			return writeProto(cmd.OutOrStdout(), output, list[0])
		},
	}
	flags.bind(cmd)
	completeObject(cmd)
	cmd.Flags().StringVar(&output, "output", "", "`file` to write instead of printing")
	return cmd
}

// writeProto writes the .proto file of a schema to the file output, or to out if output is empty.
func writeProto(out io.Writer, output string, s *schema.Schema) error {
	var text bytes.Buffer
	err := export.Proto(&text, s)
	if err != nil {
		return err
	}
	if output == "" {
		_, err = text.WriteTo(out)
	} else if err = os.WriteFile(output, text.Bytes(), 0o644); err == nil {
		_, err = fmt.Fprintf(out, "%s: types of %s written\n", output, s.Map)
	}
	if err != nil {
		return fmt.Errorf("write schema: %w", err)
	}
	return nil
}

// find returns the schemas that the argument selects: a BPF object file or a map on this host.
func (f *schemaFlags) find(what string) ([]*schema.Schema, error) {
	settings, err := daemon.ParseFields(f.fields)
	if err != nil {
		return nil, usageError{err}
	}
	node, err := config.Read(f.settings, nil)
	if err != nil {
		return nil, usageError{err}
	}
	var list []*schema.Schema
	if isObject(what) {
		list, err = f.ofFile(what)
	} else {
		list, err = ofMap(what, &node)
	}
	if err != nil {
		return nil, err
	}
	for _, set := range settings {
		if !slices.ContainsFunc(list, func(s *schema.Schema) bool { return s.Map == set.Map }) {
			return nil, usageError{fmt.Errorf("field of map %q: %s has no map of that name", set.Map, what)}
		}
	}
	return applySettings(list, &node, settings)
}

// applySettings returns the schemas with the settings of the command, and with those of a node for other fields.
func applySettings(list []*schema.Schema, node *config.Config, settings []schema.Setting) ([]*schema.Schema, error) {
	ofNode, err := daemon.ParseFields(node.Fields)
	if err != nil {
		return nil, usageError{err}
	}
	ofNode = slices.DeleteFunc(ofNode, func(of schema.Setting) bool {
		return slices.ContainsFunc(settings, func(s schema.Setting) bool {
			return s.Map == of.Map && strings.TrimPrefix(s.Field, "value.") == strings.TrimPrefix(of.Field, "value.")
		})
	})
	for i, s := range list {
		if node.DrainSums(s.Map) && s.CPUs == 0 { // the daemon refuses a per-CPU map
			s = s.WithOrigin(drained.OriginSize)
		}
		if err := s.Apply(append(ofNode, settings...)); err != nil {
			return nil, usageError{err}
		}
		list[i] = s
	}
	return list, nil
}

func (f *schemaFlags) ofFile(path string) ([]*schema.Schema, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, usageError{err}
	}
	list, err := schema.FromObject(path)
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = s.Map
	}
	if f.name != "" {
		list = slices.DeleteFunc(list, func(s *schema.Schema) bool { return s.Map != f.name })
		if len(list) > 0 {
			return list, nil // errors of other maps do not matter
		}
	}
	if len(list) == 0 && err == nil {
		err = usageError{fmt.Errorf("%s has no hash map or array %q; it has: %s%s", path, f.name, strings.Join(names, ", "), similar.Hint(f.name, names))}
	}
	return list, err
}

// isObject reports whether an argument is a BPF object file.
func isObject(what string) bool { return strings.HasSuffix(what, ".o") }

// mapRef returns the reference that an argument means, and its name in the cluster if it is a map of a node.
func mapRef(what string, node *config.Config) (name string, ref kmap.Ref, err error) {
	for _, setting := range node.Maps {
		if m, err := config.ParseMap(setting); err == nil && m.Name == what {
			name, what = m.Name, m.Ref
		}
	}
	if ref, err = kmap.ParseRef(what); err != nil {
		return "", ref, usageError{err}
	}
	return name, ref, nil
}

// ofMap returns the schema of a map on this host: one of a node, by its name in the cluster, or any other.
func ofMap(what string, node *config.Config) ([]*schema.Schema, error) {
	name, ref, err := mapRef(what, node)
	if err != nil {
		return nil, err
	}
	m, err := kmap.Resolve(ref, kmap.AnyOwner) // any owner: only the types are read
	if errors.Is(err, kmap.ErrNotFound) {
		return nil, usageError{err}
	}
	if err != nil {
		return nil, err
	}
	defer m.Close()
	info, err := kmap.Describe(m)
	if err != nil {
		return nil, err
	}
	of := info.Name
	if ref.PinPath != "" {
		of = path.Base(ref.PinPath) // the daemon uses the same name
	}
	s, err := daemon.SchemaOf(cmp.Or(name, of), info)
	if err != nil {
		return nil, err
	}
	return []*schema.Schema{s}, nil
}
