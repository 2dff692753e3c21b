package daemon

import (
	"errors"

	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
)

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
			"hint", "see docs/troubleshooting.md, map not found or refused")
	}
	m.state, m.err = MapRefused, err
}
