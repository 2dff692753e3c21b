package daemon

import (
	"errors"
	"fmt"

	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/problem"
	"mapsync/syncd/schema"
)

// ReferenceStatus is the state of a map that says what the ids in entries mean.
type ReferenceStatus struct {
	// Map is the name of the referenced map.
	Map string `json:"map"`
	// Error is why it cannot be read at present, empty if it is read.
	Error string `json:"error,omitempty"`
}

// status returns the states of the referenced maps of a schema.
func (r references) status(s *schema.Schema) (list []ReferenceStatus) {
	for _, text := range s.ReferencesOf() {
		to, err := schema.ParseReference(text)
		if m := r[to.Map]; err == nil && m != nil && (len(list) == 0 || list[len(list)-1].Map != to.Map) {
			list = append(list, ReferenceStatus{Map: to.Map, Error: m.problem()})
		}
	}
	return list
}

// references adds the problems of referenced maps that cannot be read.
func (f *finder) references(m *MapStatus) {
	for _, r := range m.References {
		if r.Error != "" {
			f.add(problem.Problem{ID: "reference-unreadable", Map: m.Name, Subject: r.Map, Text: fmt.Sprintf("the referenced map %s is not read: %s", r.Map, r.Error)})
		}
	}
}

// checkReferences checks the referenced maps of a map's fields.
func (k *checker) checkReferences(name string, s *schema.Schema, fields []schema.Setting) {
	for _, p := range s.References() {
		to, err := schema.ParseReference(p.Reference)
		if err == nil {
			err = k.checkReference(to, p.Size, fields)
		}
		if err != nil {
			k.fail("referenced-map", fmt.Errorf("%s: a field of %s refers to it: %w", to.Map, name, err))
		}
	}
}

func (k *checker) checkReference(to schema.Reference, size int, fields []schema.Setting) error {
	for _, setting := range k.config.Referenced {
		m, err := config.ParseMap(setting)
		if err != nil || m.Name != to.Map {
			continue
		}
		ref, err := kmap.ParseRef(m.Ref)
		if err != nil {
			return err
		}
		owners, err := userIDs(k.config.PinOwners)
		if err != nil {
			return err
		}
		raw, err := kmap.Resolve(ref, owners...)
		if errors.Is(err, kmap.ErrNotFound) {
			return fmt.Errorf("%s: the map of the field is not replicated until it exists", ref.Absence())
		}
		if err != nil {
			return err
		}
		defer raw.Close()
		types, err := referencedTypes(k.config, to.Map, raw, fields)
		if err == nil {
			_, err = meaningPaths(types, to)
		}
		if err == nil && types.Key.Size > size {
			err = fmt.Errorf("its keys have %d bytes, and the field has %d", types.Key.Size, size)
		}
		return err
	}
	return errors.New("no referenced-map has this name: add referenced-map: [" + to.Map + "=REF]")
}
