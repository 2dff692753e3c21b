package daemon

import (
	"fmt"
	"strconv"

	"mapsync/syncd/kmap"
	"mapsync/syncd/reference"
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
	encoder, err := schema.NewEncoder(from, sameNode{translationOf(t)})
	if err != nil {
		return nil, fmt.Errorf("read entries of the old layout: %w", err)
	}
	translation, _ := o.Meanings.(*reference.Translation)
	decoder, err := schema.NewDecoder(from, to, sameNode{translation})
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

// sameNode is schema.Links for entries that stay on this node: the name of an interface is its index. An entry therefore keeps
// the index of an interface that does not exist at present. Ids of other maps have their meanings.
type sameNode struct{ *reference.Translation }

func (sameNode) Name(index uint32) (name string, ok bool) {
	return strconv.FormatUint(uint64(index), 10), true
}

func (sameNode) Index(name string) (index uint32, ok bool) {
	n, err := strconv.ParseUint(name, 10, 32)
	return uint32(n), err == nil
}

// conversion returns functions that encode with the old layout and decode with the new one. They are not
// safe for concurrent use.
func conversion(encoder *schema.Encoder, decoder *schema.Decoder, times *schema.Times) table.Conversion {
	wire := make([]byte, 0, max(encoder.MaxKey(), encoder.MaxValue()))
	var oldKey, newKey []byte // of the record
	return table.Conversion{
		Key: func(dst, src []byte) error {
			key, err := encoder.AppendKey(wire, src)
			if err != nil {
				return err
			}
			err = decoder.Key(dst, key)
			oldKey, newKey = append(oldKey[:0], src...), append(newKey[:0], dst...)
			return err
		},
		Value: func(dst, src []byte) error {
			return decoder.Value(dst, newKey, encoder.AppendValue(wire, oldKey, src, times), times)
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
		m.log.Error("entries dropped, they do not fit the new map layout", "entries", done.Failed, "error", done.Err,
			"hint", "widen the field, or return to the older load balancer")
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

// restoreOffered makes the offered table the replica's table again. After an error between a
// conversion and the offer of the converted table, only the offered one has all fields and the
// changes since the conversion. The lock is held.
func (m *replica) restoreOffered() {
	if m.offered == nil || m.offered == m.table {
		return
	}
	m.table, m.schema = m.offered, m.offeredSchema
	m.useCounterTypes(m.schema)
	m.table.Update(func(tx *table.Tx) { tx.SetDigestKey(m.daemon.digestKey(m.name)) })
}

// tableFor returns the replica's table. Until the map is offered to peers, the table holds only the
// entries of its kernel map, and each kernel map gets a new table. Afterwards the table stays, and
// is converted for a kernel map of another layout.
func (m *replica) tableFor(a *attachment, s *schema.Schema) (*table.Table, error) {
	t, old := m.current()
	info := a.m.Info()
	var err error
	o := m.tableOptions(&info, s)
	if o.Timers = m.timers(a.m, s); a.translation != nil {
		o.Meanings = a.translation
	}
	if o.Room, err = info.LRURoom(); err != nil {
		return nil, err
	}
	switch {
	case !m.wasOffered:
		o.Stop = m.lastStop(&info, o.Stable)
		t, err := table.New(o)
		if err == nil {
			m.restoreHandover(t)
			t.Update(func(tx *table.Tx) { tx.DelayAbsent() })
		}
		return t, err
	case !schema.Identical(old, s):
		return m.convert(t, old, s, o)
	}
	t.Update(func(tx *table.Tx) { tx.SetMap(o) }) // the map may have another size or type
	return t, nil
}

// timers returns the timers of a value whose entries expire after a takeover, or nil if syncd cannot read them.
func (m *replica) timers(opened *kmap.Map, s *schema.Schema) []table.Range {
	expiry, _ := m.daemon.config.TakeoverExpiry(m.name)
	list := tableRanges(s.Timers())
	if list == nil || expiry == 0 || m.daemon.config.DrainSums(m.name) { // sums have no timers
		return nil
	}
	if !opened.ReadsTimers() {
		m.log.Warn("timers of entries are unreadable, entries found at start do not expire after a takeover",
			"hint", "grant the privilege that syncd check names; if the values also have a bpf_spin_lock, let a collector delete idle entries")
		return nil
	}
	return list
}

// variantsOf returns the masks of each combination of members that the unions of a value can have, or nil if there is one only.
func variantsOf(s *schema.Schema) *table.Variants {
	of := s.VariantOf()
	if of == nil {
		return nil
	}
	v := &table.Variants{Of: of}
	for i := range s.Variants() {
		one := s.Variant(i)
		v.Masks = append(v.Masks, table.Masks{Significant: one.Significant(), Compared: one.Compared()})
	}
	return v
}

// tableOptions returns the options of a table for a kernel map, with the schema of its entries.
func (m *replica) tableOptions(info *kmap.Info, s *schema.Schema) table.Options {
	expiry, set := m.daemon.config.TakeoverExpiry(m.name)
	if !set && m.daemon.config.DrainSums(m.name) {
		expiry = m.daemon.config.DrainSumsTTL // of nodes that have left
	}
	return table.Options{
		Self: m.daemon.self, KeySize: info.KeySize, ValueSize: info.ValueSize,
		SameMap:         m.daemon.state.sameMap(m.name, identityOf(info)),
		Unheld:          m.daemon.state.unheldKeys(m.name),
		AdoptVersion:    table.RestoredVersions,
		TombstoneTTL:    m.daemon.config.TombstoneTTL,
		MaxSkew:         m.daemon.config.MaxClockAhead / 2, // so that peers accept this node's records
		WallOffset:      m.daemon.clock.offset.Load(),
		EvictionDeletes: m.daemon.config.EvictionDeletes,
		DeletesAny:      m.daemon.config.DeletesAny(m.name),
		NewMapWins:      m.daemon.config.NewMapWins(m.name),
		HoldClears:      m.daemon.config.HoldsClears(m.name),
		ClearUse:        m.daemon.config.RefreshInterval + m.daemon.config.ScanInterval,
		LRU:             isLRU(info),
		MaxEntries:      info.MaxEntries,
		EvictedTTL:      m.daemon.config.EvictedTTL,
		MaxEvicted:      m.daemon.config.MaxEvicted,
		MaxLive:         m.maxLive(info),
		MaxTombstones:   m.daemon.config.MaxTombstones,
		SettleKeys:      settleKeys,
		TakeoverExpiry:  expiry,
		TakeoverDelay:   takeoverDelay(&m.daemon.config, m.name, expiry),
		Refresh:         m.daemon.config.RefreshInterval,
		Significant:     s.Significant(),
		Carried:         s.Carried(),
		Stable:          s.Stable(),
		DigestKey:       m.daemon.digestKey(m.name),
		ComparedKey:     s.ComparedKey(),
		Compared:        s.Compared(),
		Variants:        variantsOf(s),
		HasTimer:        hasTimer(m.name, m.schemaFile, s, *info) && !m.daemon.config.DrainSums(m.name), // sums have no timers
		Counter:         m.counter(),
	}
}
