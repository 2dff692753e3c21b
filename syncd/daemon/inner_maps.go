package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/kmap"

	"golang.org/x/sync/errgroup"
)

// innerGrace is the time for which a map of maps must lack a key before its inner map is no longer replicated. A load
// balancer that restarts may fill its maps of maps again within this time.
const innerGrace = time.Minute

// innerMaps are the groups of the settings.
type innerMaps struct {
	groups map[config.Map]*innerGroup // only New and followReloads use it

	mu sync.Mutex
	// absent are the groups of the first settings whose map of maps syncd has not found yet. The node is not ready.
	absent []string
}

// innerGroup is a setting NAME=REF[*]. Only New and followReloads use it.
type innerGroup struct {
	seen   map[string]time.Time // when the map of maps last had a key
	failed string               // the last logged error
}

// mapSettings returns the settings of maps with those of the inner maps that the groups have.
func (d *Daemon) mapSettings(c *config.Config) (settings []config.Map, err error) {
	for _, s := range c.Maps {
		m, err := config.ParseMap(s)
		if err != nil {
			return nil, err
		}
		if !m.Group() {
			settings = append(settings, m)
			continue
		}
		var keys []string
		if g := d.inner.groups[m]; g != nil {
			keys = slices.Collect(maps.Keys(g.seen))
		}
		slices.Sort(keys)
		for _, key := range keys {
			settings = append(settings, m.Inner(key))
		}
	}
	return settings, nil
}

// openInnerMaps finds the inner maps of the first settings.
func (d *Daemon) openInnerMaps() {
	for _, m := range d.config.Groups() {
		d.inner.absent = append(d.inner.absent, m.Name)
	}
	d.findInnerMaps(&d.config, time.Now())
}

// absentGroups returns the groups without a map of maps that count for the readiness of the node.
func (d *Daemon) absentGroups() []string {
	d.inner.mu.Lock()
	defer d.inner.mu.Unlock()
	return d.inner.absent
}

// findInnerMaps looks the keys of the groups in the settings up, and reports whether there are other keys than before.
// While a map of maps does not exist, its group keeps its keys.
func (d *Daemon) findInnerMaps(c *config.Config, now time.Time) (changed bool) {
	if d.inner.groups == nil {
		d.inner.groups = make(map[config.Map]*innerGroup)
	}
	total := len(c.Maps)
	for _, m := range c.Groups() {
		g := d.inner.groups[m]
		if g == nil {
			g = &innerGroup{seen: make(map[string]time.Time)}
			d.inner.groups[m] = g
		}
		if g.find(d, m, now, config.MaxMaps-total) {
			changed = true
		}
		total += len(g.seen)
	}
	return changed
}

// find looks the keys of the group up, and reports whether they have changed. The group may have room keys.
func (g *innerGroup) find(d *Daemon, m config.Map, now time.Time, room int) (changed bool) {
	ref, err := kmap.ParseRef(m.Ref)
	var keys []string
	if err == nil {
		keys, err = kmap.InnerKeys(ref, d.pinOwners...)
	}
	if errors.Is(err, kmap.ErrNotFound) {
		g.failed = ""
		return false
	}
	if err == nil {
		d.foundGroup(m.Name)
		changed, err = g.update(m, keys, now, room)
	}
	if err == nil {
		g.failed = ""
	} else if text := err.Error(); text != g.failed {
		g.failed = text
		d.log.Error("cannot replicate inner maps", "map", m.Name, "error", err)
	}
	return changed
}

func (d *Daemon) foundGroup(name string) {
	d.inner.mu.Lock()
	defer d.inner.mu.Unlock()
	d.inner.absent = slices.DeleteFunc(slices.Clone(d.inner.absent), func(s string) bool { return s == name })
}

// forgetGroups removes the groups that the settings no longer have.
func (d *Daemon) forgetGroups(c *config.Config) {
	groups := c.Groups()
	maps.DeleteFunc(d.inner.groups, func(m config.Map, _ *innerGroup) bool { return !slices.Contains(groups, m) })
	d.inner.mu.Lock()
	defer d.inner.mu.Unlock()
	d.inner.absent = slices.DeleteFunc(slices.Clone(d.inner.absent), func(name string) bool {
		return !slices.ContainsFunc(groups, func(m config.Map) bool { return m.Name == name })
	})
}

// update adds and removes keys. The error is about keys that it left out.
func (g *innerGroup) update(m config.Map, keys []string, now time.Time, room int) (changed bool, err error) {
	for _, key := range keys {
		_, known := g.seen[key]
		inner := m.Inner(key)
		switch {
		case known:
		case len(g.seen) >= room:
			err = fmt.Errorf("syncd replicates at most %d maps: %s is left out", config.MaxMaps, inner.Name)
			continue
		case !config.UsableMapName(inner.Name):
			err = fmt.Errorf("name %s is too long: choose a shorter name than %s", inner.Name, m.Name)
			continue
		default:
			changed = true
		}
		g.seen[key] = now
	}
	for key, seen := range g.seen {
		if now.Sub(seen) > innerGrace {
			delete(g.seen, key)
			changed = true
		}
	}
	return changed, err
}

// followInnerMaps starts and ends the replicas of inner maps that have come and gone.
func (d *Daemon) followInnerMaps(ctx context.Context, g *errgroup.Group, now time.Time) {
	c := d.accessConfig.Load()
	changed := d.findInnerMaps(c, now)
	d.forgetGroups(c)
	if !changed {
		return
	}
	fields, err := ParseFields(c.Fields)
	if err != nil {
		return // the settings in use have been checked
	}
	list, err := d.newReplicas(c, fields)
	if err != nil {
		d.log.Error("cannot replicate inner maps", "error", err)
		return
	}
	done := d.replaceMaps(ctx, g, list)
	d.log.Info("inner maps changed", "maps_added", done.Added, "maps_removed", done.Removed)
}
