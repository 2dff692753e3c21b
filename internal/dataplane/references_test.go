package dataplane

import (
	"testing"

	"mapsync/syncd/schema"
)

// TestReferencesOfProfiles: the referenced maps of the profiles have the fields that references name.
func TestReferencesOfProfiles(t *testing.T) {
	referenced := make(map[string]*schema.Schema)
	for _, m := range Referenced() {
		referenced[m.Name] = schemaOf(t, &m, profileFields(t, m.Profile))
	}
	checked := 0
	for _, m := range Maps() {
		for _, p := range schemaOf(t, &m, profileFields(t, m.Profile)).References() {
			r, err := schema.ParseReference(p.Reference)
			if err != nil || referenced[r.Map] == nil {
				t.Errorf("map %s: got the reference %s, error %v, want one to a map of this package", m.Name, p.Reference, err)
				continue
			}
			for _, field := range r.Fields {
				if _, err := referenced[r.Map].Path("value." + field); err != nil {
					t.Errorf("map %s, reference %s: got error %v, want the field %s", m.Name, p.Reference, err, field)
				}
				checked++
			}
			if size := referenced[r.Map].Key.Size; size > p.Size {
				t.Errorf("map %s, reference %s: got ids of %d bytes, want at most the %d of the field", m.Name, p.Reference, size, p.Size)
			}
		}
	}
	if checked < 20 {
		t.Errorf("fields of references: got %d, want at least 20", checked)
	}
}
