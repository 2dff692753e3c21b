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

// replicas returns the configured maps in the order of the settings. The caller must not change
// the list. A reload replaces it.
func (d *Daemon) replicas() []*replica {
	if list := d.maps.Load(); list != nil {
		return *list
	}
	return nil
}

// openMaps returns the number of kernel maps that the replicas open at most: with drain-sums, two for one replica.
func (d *Daemon) openMaps() int { return len(d.replicas()) + len(d.config.DrainSumsMaps) }

func namesOf(list []*replica) []string {
	names := make([]string, len(list))
	for i, m := range list {
		names[i] = m.name
	}
	return names
}

// newReplicas creates a replica for each map in the settings. It does not start them.
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
	if err := errors.Join(checkFields(fields, append(namesOf(list), c.ReferencedNames()...)), schemaFiles(list, c)); err != nil {
		return nil, err
	}
	return list, nil
}

// schemaFile returns the file from which the types of a map are read, or an empty text.
func schemaFile(c *config.Config, name string) string {
	for _, setting := range c.Schemas {
		if of, file, err := config.ParseSchema(setting); err == nil && of == name {
			return file
		}
	}
	return ""
}

// schemaFiles sets the schema files of the replicas according to the setting schema.
func schemaFiles(list []*replica, c *config.Config) error {
	referenced := c.ReferencedNames()
	for _, setting := range c.Schemas {
		name, file, err := config.ParseSchema(setting)
		if err != nil {
			return err
		}
		found := slices.Contains(referenced, name)
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

// sameSettings reports whether two replicas have the same settings, apart from the order.
func (m *replica) sameSettings(other *replica) bool {
	return m.name == other.name && m.ref == other.ref && m.schemaFile == other.schemaFile &&
		slices.EqualFunc(m.ownFields(), other.ownFields(), func(a, b schema.Setting) bool { return reflect.DeepEqual(a, b) })
}

// ownFields returns the field settings of this map.
func (m *replica) ownFields() (list []schema.Setting) {
	for _, f := range m.fields {
		if f.Map == m.name {
			list = append(list, f)
		}
	}
	return list
}

// start makes g run the replica until ctx ends or m.end is called.
func (m *replica) start(ctx context.Context, g *errgroup.Group) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	m.end = func() {
		cancel()
		<-ended
		m.daemon.replicator.RemoveMap(m.name)
		m.log.Info("map is no longer replicated")
	}
	g.Go(func() error {
		defer close(ended)
		defer cancel()
		return m.run(ctx)
	})
}

// countsForReadiness reports whether the map counts for the readiness of the node. noteReadyState
// decides this.
func (m *replica) countsForReadiness() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.exempt
}

// noteReadyState records the state of the map, and reports whether the map counts for the
// readiness of the node. A map that a reload added to a ready node only counts after it has
// become ready itself. Otherwise adding a map on one node after the other would take all nodes
// out of service.
func (m *replica) noteReadyState(v readyState) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v != notReady && !m.absent {
		m.exempt = false
	}
	return !m.exempt
}
