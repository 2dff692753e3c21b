package daemon

import (
	"context"
	"errors"
	"fmt"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/drained"
	"mapsync/syncd/kmap"
)

// ErrAttach is wrapped by the error about hooks that cannot be attached.
var ErrAttach = errors.New("attach")

// CoverSettings states how soon a node with usable settings detects the writes to its maps, in the order of the settings,
// and returns the attach method that the settings take on this kernel. It leaves out maps that do not exist or cannot be
// opened. The times are those of all these maps together, which share scan-budget. It attaches the hooks briefly. If that is
// impossible, the error wraps ErrAttach, and a daemon with these settings does not start. It needs CAP_SYS_ADMIN.
func CoverSettings(ctx context.Context, c *config.Config) (capture.Attach, []MapCoverage, error) {
	o := capture.ProbeBuffer(capture.Attach(c.Attach), capture.Buffer(c.Buffer))
	if o.Err != nil {
		return "", nil, fmt.Errorf("%w %s: %w", ErrAttach, c.Attach, o.Err)
	}
	list, err := coverConfigured(ctx, c, &o, lookupsProblem(c, &o))
	return o.Attach, list, err
}

// lookupsProblem returns why the hook of the setting in-place has no effect, nil if it works or if the settings do not
// require it. o is the probe of the attach method.
func lookupsProblem(c *config.Config, o *capture.ProbeResult) error {
	if !c.HooksAnyInPlace() {
		return nil
	}
	if o.Attach != capture.AttachFexit {
		return errors.New("it needs fexit")
	}
	tick, err := kmap.TickLength()
	if err == nil {
		_, err = capture.MeasureLookupCost(tick)
	}
	return err
}

// coverConfigured is CoverSettings after the probe. lookups is why the hook of the setting in-place has no effect.
func coverConfigured(ctx context.Context, c *config.Config, o *capture.ProbeResult, lookups error) ([]MapCoverage, error) {
	infos, err := configuredMaps(ctx, c)
	if err != nil {
		return nil, err
	}
	list, err := coverMaps(ctx, infos, o, c, true)
	for i := range list {
		list[i].addSettings(c, &infos[i], lookups)
	}
	return list, err
}

// configuredMaps describes the maps of the settings that exist, each with its name in the settings. A map with drain-sums
// has the size of its sums.
func configuredMaps(ctx context.Context, c *config.Config) ([]kmap.Info, error) {
	owners, err := userIDs(c.PinOwners)
	if err != nil {
		return nil, err
	}
	var list []kmap.Info
	for _, s := range c.Maps {
		m, err := config.ParseMap(s)
		if err != nil {
			return nil, err
		}
		ref, err := kmap.ParseRef(m.Ref)
		if err != nil {
			return nil, err
		}
		info, err := describeRef(ctx, ref, owners)
		if err != nil {
			continue // Check has reported it
		}
		if info.Name = m.Name; c.DrainSums(m.Name) {
			info.KeySize, info.MaxEntries, info.Entries = info.KeySize+drained.OriginSize, c.DrainSumsRoom(info.MaxEntries), -1
		}
		list = append(list, info)
	}
	return list, nil
}

// describeRef describes a map with its number of entries.
func describeRef(ctx context.Context, ref kmap.Ref, owners []uint32) (kmap.Info, error) {
	m, err := kmap.Resolve(ref, owners...)
	if err != nil {
		return kmap.Info{}, err
	}
	defer m.Close()
	info, err := kmap.Describe(m)
	if err == nil && info.Unsupported == nil {
		info.Entries = kmap.CountEntries(ctx, m, &info)
	}
	return info, err
}

// addSettings adds what the settings of the map change. lookups is why the hook of in-place has no effect.
func (m *MapCoverage) addSettings(c *config.Config, info *kmap.Info, lookups error) {
	if c.DrainSums(m.Name) {
		*m = MapCoverage{ID: m.ID, Name: m.Name, Type: m.Type, Evictions: CoverNone, DrainSums: true, Problem: m.Problem}
		return
	}
	m.Deletes = config.DeletesOwner
	if c.DeletesAny(m.Name) {
		m.Deletes = config.DeletesAny
	}
	if !c.HooksInPlace(m.Name) {
		return
	}
	if kmap.IsArray(info.Type) {
		lookups = errArrayLookup
	}
	if lookups != nil {
		m.InPlaceProblem = lookups.Error()
		return
	}
	m.InPlace = capture.MaxInPlaceDelay.Seconds()
}
