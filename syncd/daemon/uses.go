package daemon

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"
)

// takeoverDelayPart is the part of takeover-expiry in which a node passes over the entries twice.
const takeoverDelayPart = 4

// refuseUnseenUses returns an error if entries of a map expire after a takeover, and nothing shows whether they are in use:
// neither the hook on lookups nor a field that scans read. seesUses returns why the hook does not show uses. It does not
// check the field if s is nil.
func refuseUnseenUses(c *config.Config, name string, typ ebpf.MapType, s *schema.Schema, seesUses func(ebpf.MapType) error) error {
	if field := c.TakeoverField(name); field != "" && s != nil {
		if err := s.Sends(field); err != nil {
			return fmt.Errorf("%w: takeover-expiry: %s: %w", kmap.ErrUnsupported, name, err)
		}
		return nil
	}
	if !c.WatchesUses(name) {
		return nil
	}
	if err := seesUses(typ); err != nil {
		return fmt.Errorf("%w: takeover-expiry would end sessions in use, because syncd does not see which entries are used: %w; "+
			"set attach: auto on a kernel with fexit, or takeover-expiry: %[3]s=DURATION:FIELD if each use changes that field, or %[3]s=%[4]s",
			kmap.ErrUnsupported, err, name, config.TakeoverNever)
	}
	return nil
}

// watchUses makes the hook on lookups show the uses of entries, if they expire after a takeover and no field shows them.
func (m *replica) watchUses(a *attachment) error {
	if !m.daemon.config.WatchesUses(m.name) {
		return nil
	}
	uses, err := m.daemon.capture.WatchUses(a.source)
	if err != nil {
		return err
	}
	a.uses = uses
	m.log.Info("uses of entries are observed", "id", a.source)
	return nil
}

// syncerUses returns the uses of the entries of a map for its syncer, nil if each use changes its entry.
func (a *attachment) syncerUses() kmap.Uses {
	if a.uses == nil {
		return nil // not a nil pointer in an interface
	}
	return a.uses
}

// takeoverDelay returns the time in which other nodes find that they use an entry, and send it: by passes over the entries
// if the hook shows uses, otherwise by scans.
func takeoverDelay(c *config.Config, name string, expiry time.Duration) time.Duration {
	switch {
	case c.WatchesUses(name):
		return expiry / takeoverDelayPart
	case c.TakeoverField(name) != "":
		return c.LongestScanInterval() + c.RefreshInterval
	}
	return 0
}
