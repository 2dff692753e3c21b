package bpf

import (
	"strings"

	"github.com/cilium/ebpf"
)

// MapPrefix is the prefix of the names of syncd's own maps in the kernel.
const MapPrefix = "mapsync_"

// NameMaps gives the maps of spec names with MapPrefix. The kernel keeps 15 bytes of a name. Sections of variables
// keep their names.
func NameMaps(spec *ebpf.CollectionSpec) {
	for name, m := range spec.Maps {
		if !strings.HasPrefix(name, ".") {
			m.Name = MapPrefix + name
		}
	}
}
