package daemon

import (
	"errors"
	"fmt"
	"slices"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/problem"
	"mapsync/syncd/schema"

	"github.com/cilium/ebpf"
)

// checkMaps checks the settings of maps. If bpf(2) is allowed, it checks the kernel maps that exist, too.
func (k *checker) checkMaps(allowed bool) {
	fields, err := ParseFields(k.config.Fields)
	k.fail("field", err)
	owners, err := userIDs(k.config.PinOwners)
	k.fail("pin-owner", err)
	var list []*replica
	for _, s := range k.config.Maps {
		m, err := config.ParseMap(s)
		if err != nil {
			continue // Validate has reported it
		}
		ref, err := kmap.ParseRef(m.Ref)
		k.fail("map", err)
		list = append(list, &replica{name: m.Name, ref: ref, fields: fields})
	}
	k.fail("field", checkFields(fields, append(namesOf(list), k.config.ReferencedNames()...)))
	k.fail("schema", schemaFiles(list, k.config))
	ids := make(map[uint32]string)
	for _, m := range list {
		if k.only != nil && !slices.Contains(k.only, m.name) {
			continue
		}
		exists := false
		if allowed && m.ref != (kmap.Ref{}) {
			exists = k.checkMap(m, owners, ids)
		}
		if m.schemaFile != "" && !exists {
			k.checkSchema(m)
		}
	}
}

// checkMap checks one kernel map, and reports whether it exists and its types have been read. ids has the names of the maps checked before,
// by kernel map id.
func (k *checker) checkMap(m *replica, owners []uint32, ids map[uint32]string) bool {
	raw, err := kmap.Resolve(m.ref, owners...)
	if errors.Is(err, kmap.ErrNotFound) {
		k.checkAbsent(m)
		return false
	}
	var info kmap.Info
	if err == nil {
		defer raw.Close()
		info, err = kmap.Describe(raw)
	}
	if err == nil {
		err = info.Unsupported
	}
	if err != nil {
		k.fail("map", fmt.Errorf("%s: %w", m.name, err))
		return false
	}
	if other, ok := ids[info.ID]; ok {
		k.fail("map", fmt.Errorf("%s: %w: map %s uses it", m.name, errDuplicate, other))
	}
	ids[info.ID] = m.name
	if err := refuseDeletes(k.config, m.name, &info); err != nil {
		k.fail("deletes", fmt.Errorf("%s: %w", m.name, err))
	}
	return k.checkTypes(m, raw, &info)
}

// checkAbsent reports a kernel map that does not exist: syncd waits for it.
func (k *checker) checkAbsent(m *replica) {
	if k.config.IsOptional(m.name) {
		return
	}
	if text := m.ref.MissingFileSystem(); text != "" {
		k.fail("map", fmt.Errorf("%s: %s: %s", m.name, text, problem.Of("bpf-file-system").Remedy))
		return
	}
	if text := m.ref.Absence(); text != "" {
		k.warn("map", "%s: no such kernel map yet, syncd waits for it: %s", m.name, text)
	}
}

// checkTypes checks the types of a kernel map with the settings that concern its fields. It reports whether the types can be read.
func (k *checker) checkTypes(m *replica, raw *ebpf.Map, info *kmap.Info) bool {
	s, err := typesOf(k.config, m.name, m.schemaFile, *info)
	if err != nil {
		k.fail("map", fmt.Errorf("%s: %w", m.name, err))
		return false
	}
	if err := s.Apply(m.fields); err != nil {
		k.fail("field", err)
		return true
	}
	if err := refuseTimers(k.config, m.name, hasTimer(m.name, m.schemaFile, s, *info)); err != nil {
		k.fail("takeover-expiry", fmt.Errorf("%s: %w", m.name, err))
	}
	k.checkUses(m.name, info, s)
	k.checkReferences(m.name, s, m.fields)
	k.checkMetrics(m.name, s)
	if !k.config.DrainSums(m.name) {
		k.checkRoles(m.name, raw, s)
	}
	return true
}

// checkMetrics warns about counters of fields that a map does not have: it is replicated without them.
func (k *checker) checkMetrics(name string, s *schema.Schema) {
	for i := range k.config.Metrics {
		setting := &k.config.Metrics[i]
		if setting.Map != name {
			continue
		}
		if err := newCounters(k.config, setting).SetTypes(s, nil); err != nil { // without links: nothing is printed
			k.warn("metrics", "%s: counter %s: %v: it does not count", name, setting.Counters[0].Name, err)
		}
	}
}

// checkUses checks that syncd sees which entries of a map are in use, if they expire after a takeover.
func (k *checker) checkUses(name string, info *kmap.Info, s *schema.Schema) {
	if k.seesUses == nil && k.config.WatchesUses(name) {
		tick, err := kmap.TickLength()
		if err == nil {
			k.seesUses, err = capture.ProbeUses(capture.Attach(k.config.Attach), tick)
		}
		if err != nil {
			k.warn("takeover-expiry", "%s: not checked whether syncd sees which entries are in use: %v", name, err)
			k.seesUses = func(ebpf.MapType) error { return nil }
		}
	}
	if err := refuseUnseenUses(k.config, name, info.Type, s, k.seesUses); err != nil {
		k.fail("takeover-expiry", fmt.Errorf("%s: %w", name, err))
	}
}

// checkSchema checks the file with the types of a map that does not exist.
func (k *checker) checkSchema(m *replica) {
	list, err := schema.FromObject(m.schemaFile)
	for _, s := range list {
		if s.Map == m.name {
			return
		}
	}
	if err != nil {
		k.fail("schema", fmt.Errorf("%s: %w", m.name, err))
		return
	}
	k.warn("schema", "%s: %s has no hash map of that name; one with the kernel map's name is used if there is one", m.name, m.schemaFile)
}
