package daemon

import "mapsync/syncd/config"

// watchInPlace hooks the lookups in a map if the settings require it. Scans find changes in place otherwise.
func (m *replica) watchInPlace(a *attachment) {
	d := m.daemon
	if !d.config.HooksInPlace(m.name) {
		return
	}
	err := d.capture.WatchLookups(a.m.Info().ID)
	m.mu.Lock()
	a.hooksInPlace, a.inPlaceErr = err == nil, err
	m.mu.Unlock()
	if err != nil {
		m.log.Warn("lookups are not hooked, changes in place are found by scans", "reason", err,
			"scan_interval", d.config.ScanInterval.String(), "hint", "use a kernel with fexit, see `syncd check`")
	}
}

// inPlace returns how changes in place are found: a value of the setting in-place.
func (a *attachment) inPlace() string {
	if a.hooksInPlace {
		return config.InPlaceHook
	}
	return config.InPlaceScan
}
