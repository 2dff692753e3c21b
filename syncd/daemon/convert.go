package daemon

import (
	"fmt"

	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// convert returns a table of the sizes in o that knows what t knows, in the layout of
// another schema: the load balancer came back with other types. Fields are mapped by name,
// as between nodes. An error names the fields that do not fit; t is as before.
func (m *replica) convert(t *table.Table, from, to *schema.Schema, o table.Options) (*table.Table, error) {
	// What is local was this node's before, and is so after.
	from, to = withoutLocal(from), withoutLocal(to)
	links := m.daemon.links
	encoder, err := schema.NewEncoder(from, links)
	if err != nil {
		return nil, fmt.Errorf("read entries of the old layout: %w", err)
	}
	decoder, err := schema.NewDecoder(from, to, links)
	if err != nil {
		return nil, fmt.Errorf("bring the table into the new map's layout, its own being the sender's (or restart syncd to begin anew): %w", err)
	}
	times := m.daemon.clock.times()
	wire := make([]byte, 0, max(encoder.MaxKey(), encoder.MaxValue()))
	converted, done, err := t.Convert(o, table.Conversion{
		Key: func(dst, src []byte) error {
			key, err := encoder.AppendKey(wire, src)
			if err != nil {
				return err
			}
			return decoder.Key(dst, key)
		},
		Value: func(dst, src []byte) error {
			return decoder.Value(dst, encoder.AppendValue(wire, src, &times), &times)
		},
	})
	if err != nil {
		return nil, err
	}
	m.converted(done)
	return converted, nil
}

// converted counts and logs what became of the entries.
func (m *replica) converted(done table.Converted) {
	m.mu.Lock()
	m.conversions++
	m.unconverted += uint64(done.Failed)
	m.mu.Unlock()
	if done.Failed > 0 {
		m.log.Error("entries do not fit the new map's layout and are left out", "entries", done.Failed, "error", done.Err)
	}
	m.log.Info("the table has the new map's layout", "records", done.Records)
}

// withoutLocal returns a copy of a schema in which nothing is local.
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
