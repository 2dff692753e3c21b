package daemon

import (
	"errors"

	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
)

// errArrayLookup: the verifier replaces lookups in arrays by instructions, which no hook detects.
var errArrayLookup = errors.New("lookups in an array call no function of the kernel")

// watchInPlace hooks the lookups in a map if the settings require it. Scans find changes in place otherwise.
func (m *replica) watchInPlace(a *attachment) {
	d := m.daemon
	if !d.config.HooksInPlace(m.name) {
		return
	}
	err := errArrayLookup
	if info := a.m.Info(); !kmap.IsArray(info.Type) {
		err = d.capture.WatchLookups(a.source)
	}
	m.mu.Lock()
	a.hooksInPlace, a.inPlaceErr = err == nil, err
	m.mu.Unlock()
	if err != nil {
		m.log.Warn("lookups are not hooked, changes in place are found by scans", "reason", err,
			"scan_interval", d.config.ScanInterval.String(), "hint", "see `syncd check`, and docs/capture.md")
	}
}

// inPlace returns how changes in place are found: a value of the setting in-place.
func (a *attachment) inPlace() string {
	if a.hooksInPlace {
		return config.InPlaceHook
	}
	return config.InPlaceScan
}
