package main

import (
	"reflect"

	"mapsync/syncd/config"
)

// defences are the settings that limit what others may do, of those that this syncd has.
func defences(*cluster) map[string]any {
	wanted := map[string]any{
		"allowed-names": []string{"lb*", mallory},
		// Redundancy is stated, so that a lost peer is missed.
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
