package daemon

import (
	"errors"
	"fmt"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
)

// refuseDeletes returns an error if deletes of the map cannot be distinguished from its evictions, and the settings require that.
func refuseDeletes(c *config.Config, name string, info *kmap.Info) error {
	if !isLRU(info) || !c.DeletesAny(name) {
		return nil
	}
	return fmt.Errorf("%w: its type %s evicts entries, which deletes: any may take for deletes; remove it from deletes",
		kmap.ErrUnsupported, info.Type)
}

// refuseTimers returns an error if the values of the map have timers, and the settings have no rule for them.
func refuseTimers(c *config.Config, name string, timers bool) error {
	if _, set := c.TakeoverExpiry(name); set || !timers {
		return nil
	}
	return fmt.Errorf("%w: its values have a bpf_timer, which is not armed on peers, so that entries stay after a takeover; "+
		"set takeover-expiry: %[2]s=DURATION, or %[2]s=%[3]s", kmap.ErrUnsupported, name, config.TakeoverNever)
}

// unfit reports whether a kernel map can never be replicated, whatever else changes.
func unfit(err error) bool {
	return errors.Is(err, kmap.ErrUnsupported) || errors.Is(err, capture.ErrEntryTooLarge)
}

// clearRefusal clears the error of the map, so that the next error is logged again.
func (m *replica) clearRefusal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err, m.refusal = nil, ""
}

// refuse sets the map to MapRefused because of err. It logs err unless it was logged before.
func (m *replica) refuse(err error) {
	m.closeFirstRead()
	m.mu.Lock()
	defer m.mu.Unlock()
	if text := err.Error(); m.refusal != text {
		m.refusal = text
		m.log.Error("cannot replicate map", "error", err, "retried", !unfit(err),
			"hint", "see docs/night.md#map-refused")
	}
	m.state, m.err = MapRefused, err
}
