package daemon

import (
	"time"

	"mapsync/syncd/config"
)

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

// missedLookups notes when the hooks last missed lookups. The lock of losses protects it.
type missedLookups struct {
	seen uint64    // capture.Stats.LookupsMissed at the last check
	at   time.Time // zero: none were missed
}

// note compares the counter with that of the last check.
func (l *missedLookups) note(missed uint64) {
	if missed > l.seen {
		l.seen, l.at = missed, time.Now()
	}
}

// mayExtendHooked is mayExtendScans for a map whose lookups are hooked. After missed lookups, scans stay as frequent
// as without the hook.
func (d *Daemon) mayExtendHooked() bool {
	d.losses.mu.Lock()
	missed := d.losses.lookups.at
	d.losses.mu.Unlock()
	return d.capture.DetectsAllWrites() && time.Since(missed) > d.config.LongestScanInterval()
}
