package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"

	"mapsync/syncd/config"
	"mapsync/syncd/drained"
	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// ParseFields parses the setting field. The error joins those of all entries.
func ParseFields(settings []string) ([]schema.Setting, error) {
	var list []schema.Setting
	var errs []error
	for _, s := range settings {
		f, err := schema.ParseSetting(s)
		errs = append(errs, err)
		list = append(list, f)
	}
	return list, errors.Join(errs...)
}

// SchemaOf returns the schema of a kernel map's entries according to its BTF. Without BTF the
// schema is opaque bytes: see [schema.Schema.Opaque]. Without permission to read BTF, the error
// wraps [fs.ErrPermission].
func SchemaOf(name string, info kmap.Info) (*schema.Schema, error) {
	valueSize := info.ValueSize
	if info.CPUs > 0 {
		valueSize = info.ElemSize
	}
	ids := schema.BTFIDs{BTF: info.BTFID, Key: info.BTFKeyType, Value: info.BTFValueType}
	s, err := schema.FromMap(name, ids, info.KeySize, valueSize)
	if err == nil && info.CPUs > 0 {
		s = s.PerCPU(info.CPUs)
	}
	return s, err
}

// schemaFor returns the schema of the replica's kernel map, with the roles from the settings.
func (m *replica) schemaFor(info kmap.Info) (*schema.Schema, error) {
	s, err := typesOf(&m.daemon.config, m.name, m.schemaFile, info)
	if err != nil {
		return nil, err
	}
	if err := s.Apply(m.fields); err != nil {
		return nil, err
	}
	if s.Opaque && len(s.FieldNames()) == 2 {
		m.log.Warn("map has no BTF, replicating entries as bytes",
			slog.Int("key_bytes", info.KeySize), slog.Int("value_bytes", info.ValueSize),
			slog.String("hint", "build the load balancer with -g, or set schema"))
	}
	return s, nil
}

// typesOf returns the schema of a map's entries, without the roles from the settings. file is the one in the settings from which
// it reads the types; empty: from the kernel.
func typesOf(c *config.Config, name, file string, info kmap.Info) (s *schema.Schema, err error) {
	if file == "" {
		s, err = SchemaOf(name, info)
	} else {
		s, err = typesInFile(name, file, info)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("the map's types cannot be read (give syncd CAP_SYS_ADMIN, or --schema %s=FILE.o with the load balancer's object file): %w", name, err)
	case err != nil:
		return nil, err
	case c.CheckEntrySize(name, info.KeySize, entrySize(info)) != nil:
		return nil, c.CheckEntrySize(name, info.KeySize, entrySize(info))
	case c.DrainSums(name) && info.CPUs == 0: // a per-CPU map is refused later
		s = s.WithOrigin(drained.OriginSize)
	}
	return s, nil
}

// entrySize returns the size of a value, for a per-CPU map of one CPU's.
func entrySize(info kmap.Info) int {
	if info.CPUs > 0 {
		return info.ElemSize
	}
	return info.ValueSize
}

// typesInFile reads the types of a map from a BPF object file.
func typesInFile(name, file string, info kmap.Info) (*schema.Schema, error) {
	// Errors of other maps in the file do not matter.
	list, err := schema.FromObject(file)
	for _, s := range list {
		// The kernel truncates names to 15 bytes.
		if s.Map == name || s.Map == info.Name || (len(info.Name) == 15 && strings.HasPrefix(s.Map, info.Name)) {
			s.Map = name
			return sized(s, info)
		}
	}
	return nil, errors.Join(fmt.Errorf("read types of map %s: %s has no hash map or array of that name", name, file), err)
}

// hasTimer reports whether the values of a map have a timer, according to its schema or to the kernel's types: a file
// in the settings may be of another version of the load balancer. The latter need CAP_SYS_ADMIN.
func hasTimer(name, file string, s *schema.Schema, info kmap.Info) bool {
	if file == "" || s.Timers() != nil {
		return s.Timers() != nil
	}
	inKernel, err := SchemaOf(name, info)
	return err == nil && inKernel.Timers() != nil
}

// sized checks that a schema from a file fits a kernel map, and sets its number of CPUs.
func sized(s *schema.Schema, info kmap.Info) (*schema.Schema, error) {
	if s.CPUs > 0 {
		one := *s // the file does not contain this host's number of CPUs
		one.Value, one.CPUs = s.Value.Fields[0].Message, 0
		s = one.PerCPU(max(info.CPUs, 1))
	}
	if s.Key.Size != info.KeySize || s.Value.Size != info.ValueSize {
		return nil, fmt.Errorf("the file's types have %d+%d bytes, the map's entries %d+%d: is it another version of the load balancer?",
			s.Key.Size, s.Value.Size, info.KeySize, info.ValueSize)
	}
	return s, nil
}

// tableRanges returns ranges of a value in the type of tables.
func tableRanges(ranges []schema.Range) []table.Range {
	var list []table.Range
	for _, r := range ranges {
		list = append(list, table.Range{Offset: r.Offset, Size: r.Size})
	}
	return list
}

// checkFields returns an error for each setting in fields that does not name a map in names.
func checkFields(fields []schema.Setting, names []string) error {
	var errs []error
	for _, f := range fields {
		known := false
		for _, name := range names {
			known = known || name == f.Map
		}
		if !known {
			errs = append(errs, fmt.Errorf("field %s:%s: no map of that name is replicated", f.Map, f.Field))
		}
	}
	return errors.Join(errs...)
}
