package daemon

import (
	"fmt"

	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// convert returns a new table with the options o and the records of t, converted from the schema
// from to the schema to. It is used when the load balancer creates its map again with other
// types. It matches fields by name, as between nodes. An error names the fields that do not fit.
// t does not change.
func (m *replica) convert(t *table.Table, from, to *schema.Schema, o table.Options) (*table.Table, error) {
	// Local fields belong to this node before and after the conversion, so they are converted,
	// too.
	from, to = withoutLocal(from), withoutLocal(to)
	links := m.daemon.links
	encoder, err := schema.NewEncoder(from, links)
	if err != nil {
		return nil, fmt.Errorf("read entries of the old layout: %w", err)
	}
	decoder, err := schema.NewDecoder(from, to, links)
	if err != nil {
		return nil, fmt.Errorf("convert table to the new map layout (restart syncd to start with an empty table): %w", err)
	}
	times := m.daemon.clock.times()
	converted, done, err := t.Convert(o, conversion(encoder, decoder, &times))
	if err != nil {
		return nil, err
	}
	m.noteConversion(done)
	return converted, nil
}

// conversion returns functions that encode with the old layout and decode with the new one. They are not
// safe for concurrent use.
func conversion(encoder *schema.Encoder, decoder *schema.Decoder, times *schema.Times) table.Conversion {
	wire := make([]byte, 0, max(encoder.MaxKey(), encoder.MaxValue()))
	return table.Conversion{
		Key: func(dst, src []byte) error {
			key, err := encoder.AppendKey(wire, src)
			if err != nil {
				return err
			}
			return decoder.Key(dst, key)
		},
		Value: func(dst, src []byte) error {
			return decoder.Value(dst, encoder.AppendValue(wire, src, times), times)
		},
	}
}

// noteConversion counts and logs the result of a conversion.
func (m *replica) noteConversion(done table.Converted) {
	m.mu.Lock()
	m.conversions++
	m.unconverted += uint64(done.Failed)
	m.mu.Unlock()
	if done.Failed > 0 {
		m.log.Error("entries dropped, they do not fit the new map layout", "entries", done.Failed, "error", done.Err)
	}
	m.log.Info("table converted to the new map layout", "records", done.Records)
}

// withoutLocal returns a copy of a schema in which no field is local.
func withoutLocal(s *schema.Schema) *schema.Schema {
	c := *s
	c.Key, c.Value = messageWithoutLocal(s.Key), messageWithoutLocal(s.Value)
	return &c
}

func messageWithoutLocal(m *schema.Message) *schema.Message {
	if m == nil {
		return nil
	}
	c := *m
	c.Fields = make([]schema.Field, len(m.Fields))
	for i, f := range m.Fields {
		f.Roles &^= schema.RoleLocal
		f.Default = nil
		f.Message = messageWithoutLocal(f.Message)
		c.Fields[i] = f
	}
	return &c
}
