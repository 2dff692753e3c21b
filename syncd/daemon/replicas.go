package daemon

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"mapsync/syncd/config"
	"mapsync/syncd/schema"

	"golang.org/x/sync/errgroup"
)

// replicas returns the configured maps in the order of the settings, to be read only. A
// reload replaces the list.
func (d *Daemon) replicas() []*replica {
	if list := d.maps.Load(); list != nil {
		return *list
	}
	return nil
}

func namesOf(list []*replica) []string {
	names := make([]string, len(list))
	for i, m := range list {
		names[i] = m.name
	}
	return names
}

// newReplicas makes a replica for each map of the settings. It starts none.
func (d *Daemon) newReplicas(c *config.Config, fields []schema.Setting) ([]*replica, error) {
	list := make([]*replica, 0, len(c.Maps))
	for i, s := range c.Maps {
		m, err := newReplica(d, i, s)
		if err != nil {
			return nil, err
		}
		m.fields = fields
		list = append(list, m)
	}
	if err := errors.Join(checkFields(fields, namesOf(list)), schemaFiles(list, c.Schemas)); err != nil {
		return nil, err
	}
	return list, nil
}

// schemaFiles reads the setting schema into the replicas.
func schemaFiles(list []*replica, settings []string) error {
	for _, setting := range settings {
		name, file, err := config.ParseSchema(setting)
		if err != nil {
			return err
		}
		found := false
		for _, m := range list {
			if m.name == name {
				m.schemaFile, found = file, true
			}
		}
		if !found {
			return fmt.Errorf("schema %q: no map of that name is replicated", setting)
		}
	}
	return nil
}

// alike reports whether two replicas are made of the same settings, the order aside.
func (m *replica) alike(other *replica) bool {
	return m.name == other.name && m.ref == other.ref && m.schemaFile == other.schemaFile &&
		slices.EqualFunc(m.ownFields(), other.ownFields(), func(a, b schema.Setting) bool { return reflect.DeepEqual(a, b) })
}

// ownFields returns the settings of this map's fields.
func (m *replica) ownFields() (list []schema.Setting) {
	for _, f := range m.fields {
		if f.Map == m.name {
			list = append(list, f)
		}
	}
	return list
}

// start has g run the replica until ctx ends, or end is called.
func (m *replica) start(ctx context.Context, g *errgroup.Group) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	m.end = func() {
		cancel()
		<-ended
		m.daemon.replicator.RemoveMap(m.name)
		m.log.Info("the map is no longer replicated")
	}
	g.Go(func() error {
		defer close(ended)
		defer cancel()
		return m.run(ctx)
	})
}

// counts reports whether the map counts for the readiness of the node, as admitted has found.
func (m *replica) counts() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.late
}

// admitted reports whether the map counts for the readiness of the node: one that a reload
// added to a node that was ready does so once it was ready itself. Adding a map on one
// node after the other would otherwise take all nodes out of service.
func (m *replica) admitted(v verdict) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v != notReady {
		m.late = false
	}
	return !m.late
}
