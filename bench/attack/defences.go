package main

import (
	"reflect"

	"mapsync/syncd/config"
)

// defences returns the settings that limit other hosts, as far as this version of syncd has them.
func defences(*cluster) map[string]any {
	wanted := map[string]any{
		"allowed-names": []string{"lb*", mallory},
		// With expected-peers, syncd reports a lost peer.
		"expected-peers": []string{"2"},
	}
	known := make(map[string]bool)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config.Config]()) {
		known[f.Tag.Get("yaml")] = true
	}
	for name := range wanted {
		if !known[name] {
			delete(wanted, name)
		}
	}
	return wanted
}
