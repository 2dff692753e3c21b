package cluster

import (
	"github.com/cilium/ebpf/btf"
)

// The interface that every second flow names, in a map with such indexes. The index is the same on all nodes, so that
// their entries are equal.
const (
	linkName  = "lan0"
	linkIndex = 1000
	linkSize  = 4 // bytes of an index
)

// linkField is the setting that gives the field of linkTypes its role.
const linkField = "ct:link=ifindex"

// linkTypes returns the types of the keys and values of a map whose values end with the index of an interface.
func linkTypes() (key, value btf.Type) {
	b := &btf.Int{Name: "unsigned char", Size: 1}
	index := &btf.Int{Name: "unsigned int", Size: linkSize}
	bytes := func(n uint32) btf.Type { return &btf.Array{Index: index, Type: b, Nelems: n} }
	key = &btf.Struct{Name: "ct_key", Size: keySize, Members: []btf.Member{{Name: "bytes", Type: bytes(keySize)}}}
	value = &btf.Struct{Name: "ct_value", Size: valueSize, Members: []btf.Member{
		{Name: "bytes", Type: bytes(valueSize - linkSize)},
		{Name: "link", Type: index, Offset: 8 * (valueSize - linkSize)},
	}}
	return key, value
}
