package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"

	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// ParseFields reads the setting field.
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

// SchemaOf returns what a kernel map's entries are made of, by its BTF. Without
// BTF, or without the right to read it, that is bytes: see [schema.Schema.Opaque].
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

// schemaFor returns the schema of the replica's kernel map, with the roles that
// the settings give.
func (m *replica) schemaFor(info kmap.Info) (*schema.Schema, error) {
	s, err := m.typesOf(info)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("the map's types cannot be read (give syncd CAP_SYS_ADMIN, or --schema %s=FILE.o with the load balancer's object file): %w", m.name, err)
	}
	if err != nil {
		return nil, err
	}
	if err := s.Apply(m.fields); err != nil {
		return nil, err
	}
	if s.Opaque {
		m.log.Warn("the map has no BTF, so its entries are replicated as bytes: time stamps keep this node's clock",
			slog.Int("key_bytes", info.KeySize), slog.Int("value_bytes", info.ValueSize))
	}
	return s, nil
}

// typesOf reads the map's types from the file that the settings name, or from the kernel.
func (m *replica) typesOf(info kmap.Info) (*schema.Schema, error) {
	if m.schemaFile == "" {
		return SchemaOf(m.name, info)
	}
	// What is wrong with other maps of the file does not matter.
	list, err := schema.FromObject(m.schemaFile)
	for _, s := range list {
		// The kernel keeps 15 bytes of a name.
		if s.Map == m.name || s.Map == info.Name || (len(info.Name) == 15 && strings.HasPrefix(s.Map, info.Name)) {
			s.Map = m.name
			return sized(s, info)
		}
	}
	return nil, errors.Join(fmt.Errorf("read types of map %s: %s has no hash map of that name", m.name, m.schemaFile), err)
}

// sized checks that a schema from a file is that of a kernel map.
func sized(s *schema.Schema, info kmap.Info) (*schema.Schema, error) {
	if s.CPUs > 0 {
		one := *s // the file does not say how many there are here
		one.Value, one.CPUs = s.Value.Fields[0].Message, 0
		s = one.PerCPU(max(info.CPUs, 1))
	}
	if s.Key.Size != info.KeySize || s.Value.Size != info.ValueSize {
		return nil, fmt.Errorf("the file's types have %d+%d bytes, the map's entries %d+%d: is it another version of the load balancer?",
			s.Key.Size, s.Value.Size, info.KeySize, info.ValueSize)
	}
	return s, nil
}

// keptRanges are the parts of a value that belong to the local kernel map.
func keptRanges(s *schema.Schema) []table.Range {
	var list []table.Range
	for _, r := range s.Local() {
		list = append(list, table.Range{Offset: r.Offset, Size: r.Size})
	}
	return list
}

// checkFields says which settings name no map of this daemon.
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
