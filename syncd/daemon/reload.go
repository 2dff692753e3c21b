package daemon

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"mapsync/syncd/config"

	"golang.org/x/sync/errgroup"
)

// ErrSettings is wrapped by the error of a reload whose settings or files cannot be used.
var ErrSettings = errors.New("settings not reloaded, the former ones stay in use")

// reloadable lists the settings that a reload applies. It also reads files again whose names did
// not change: certificates, gossip keys, and the types of maps when those are attached next.
var reloadable = []string{
	"profile", "map", "schema", "field", "allowed-names", "observers", "read-from", "write-from",
	"tls-cert", "tls-key", "tls-ca", "tls-crl", "log-level",
}

// Reloaded is the result of a reload.
type Reloaded struct {
	Added   []string `json:"added"`   // maps
	Removed []string `json:"removed"` // maps; a changed map is removed and added
	Access  []string `json:"access"`  // maps whose access settings changed
	Keys    bool     `json:"keys"`    // the first gossip key changed
	// NeedsRestart lists the changed settings that only take effect with a restart.
	NeedsRestart []string `json:"needs_restart"`
}

// reloads is the state of the reloads of a Daemon.
type reloads struct {
	load     func() (config.Config, error) // nil: the Daemon refuses to reload
	requests chan chan<- reloadAnswer

	mu      sync.Mutex
	failure error     // error of the latest reload
	last    time.Time // time of the last successful load of the settings
	// needsRestart has the settings that it has changed and that are not in use.
	needsRestart []string
}

type reloadAnswer struct {
	done Reloaded
	err  error
}

// Reload reads the settings and all files that they name again, and applies the [reloadable]
// ones. An error that wraps ErrSettings means that it applied none of them. After another error
// it has applied a part of them. If ctx ends first, Reload returns its error, and the reload may
// still be executed.
func (d *Daemon) Reload(ctx context.Context) (Reloaded, error) {
	answer := make(chan reloadAnswer, 1)
	select {
	case d.reloads.requests <- answer:
	case <-ctx.Done():
		return Reloaded{}, fmt.Errorf("reload: %w", ctx.Err())
	}
	select {
	case a := <-answer:
		return a.done, a.err
	case <-ctx.Done():
		return Reloaded{}, fmt.Errorf("reload: %w", ctx.Err())
	}
}

// followReloads starts the replicas, and executes reloads until ctx ends.
func (d *Daemon) followReloads(ctx context.Context, g *errgroup.Group) error {
	for _, m := range d.replicas() {
		m.start(ctx, g)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case answer := <-d.reloads.requests:
			done, err := d.reload(ctx, g)
			d.noteReload(&done, err)
			answer <- reloadAnswer{done, err}
		}
	}
}

func (d *Daemon) noteReload(done *Reloaded, err error) {
	r := &d.reloads
	r.mu.Lock()
	r.failure = err
	if err == nil {
		r.last, r.needsRestart = time.Now(), done.NeedsRestart
	}
	r.mu.Unlock()
	switch {
	case errors.Is(err, ErrSettings):
		d.log.Error("settings not reloaded", "error", err, "hint", "correct the file and reload again; nothing was changed")
		return
	case err != nil:
		d.log.Error("settings partially reloaded", "error", err, "hint", "reload again; if that fails, too: systemctl restart syncd")
		return
	}
	d.log.Info("settings reloaded", "maps_added", done.Added, "maps_removed", done.Removed, "maps_access", done.Access, "gossip_keys_changed", done.Keys)
	if len(done.NeedsRestart) > 0 {
		d.log.Warn("changed settings need a restart", "settings", done.NeedsRestart,
			"hint", "systemctl restart syncd; until then the former values stay in use")
	}
}

// needRestart returns the changed settings that are not in use.
func (r *reloads) needRestart() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.needsRestart)
}

// lastReload returns when settings were last loaded with success, and the error of the latest
// reload. The error is nil if the reload succeeded or if there was none.
func (d *Daemon) lastReload() (last time.Time, failure error) {
	r := &d.reloads
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.failure
}

// reload executes a reload. It prepares everything that can fail before it changes anything.
func (d *Daemon) reload(ctx context.Context, g *errgroup.Group) (Reloaded, error) {
	p, err := d.prepareReload()
	if err != nil {
		return Reloaded{}, fmt.Errorf("%w: %w", ErrSettings, err)
	}
	next := p.config
	before := d.accessConfig.Swap(&next)
	p.useCredentials()
	d.replicator.Reauthorise()
	done := d.replaceMaps(ctx, g, p.maps)
	// These steps were checked above. If one fails nevertheless, the steps before it stay in
	// effect.
	if done.Access, err = d.useAccess(before, &next); err != nil {
		return Reloaded{}, fmt.Errorf("settings partially applied, without read-from, write-from and gossip keys: %w", err)
	}
	if done.Keys, err = d.useKeys(p.keys); err != nil {
		return Reloaded{}, fmt.Errorf("settings partially applied, without gossip keys: %w", err)
	}
	if d.logLevel != nil {
		d.logLevel.Set(next.Level())
	}
	done.NeedsRestart = changedSettings(&d.config, &next)
	return done, nil
}

// preparedReload is what a reload puts into effect.
type preparedReload struct {
	config         config.Config // validated
	keys           [][]byte      // of gossip, accepted by CheckNewKeys
	useCredentials func()        // makes the new certificates take effect
	maps           []*replica    // of config, not started
}

// prepareReload loads the settings and the files that they name, and checks them. It changes nothing.
func (d *Daemon) prepareReload() (p preparedReload, err error) {
	if d.reloads.load == nil {
		return p, errors.New("syncd was started without a way to load settings")
	}
	if p.config, err = d.reloads.load(); err != nil {
		return p, err
	}
	if p.keys, err = readGossipKeys(d.config.GossipKeyFile, d.log); err != nil {
		return p, err
	}
	if err := checkExposure(&p.config); err != nil {
		return p, err
	}
	if !d.config.Standalone() {
		if err := d.cluster.CheckNewKeys(p.keys); err != nil {
			return p, err
		}
	}
	if p.config.TLS() != d.config.TLS() {
		return p, errors.New("tls-cert: a reload cannot turn TLS on or off: restart syncd")
	}
	if p.useCredentials, err = d.credentials.Prepare(credentialsOptions(&p.config)); err != nil {
		return p, err
	}
	fields, err := ParseFields(p.config.Fields)
	if err != nil {
		return p, err
	}
	p.maps, err = d.newReplicas(&p.config, fields)
	return p, err
}

// useAccess applies read-from and write-from to the maps for which they changed. It returns the
// names of these maps.
func (d *Daemon) useAccess(before, next *config.Config) (changed []string, err error) {
	changed = []string{}
	for _, m := range d.replicas() {
		if slices.Equal(config.AccessOf(before.ReadFrom, m.name), config.AccessOf(next.ReadFrom, m.name)) &&
			slices.Equal(config.AccessOf(before.WriteFrom, m.name), config.AccessOf(next.WriteFrom, m.name)) {
			continue
		}
		if err := d.replicator.UpdateAccess(m.name); err != nil {
			return nil, err
		}
		changed = append(changed, m.name)
	}
	return changed, nil
}

// changedSettings returns the names of the settings that differ and are not reloadable.
func changedSettings(a, b *config.Config) []string {
	list := []string{}
	x, y := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range x.NumField() {
		name := x.Type().Field(i).Tag.Get("yaml")
		if !slices.Contains(reloadable, name) && !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			list = append(list, name)
		}
	}
	return list
}

// useKeys sets the gossip keys, and derives the digest keys from the first one. It reports
// whether the first key changed. Until all nodes have the same first key, their digests cannot be
// compared. Maps that are ready stay ready.
func (d *Daemon) useKeys(keys [][]byte) (changed bool, err error) {
	if len(keys) == 0 {
		return false, nil
	}
	if err := d.cluster.SetGossipKeys(keys); err != nil {
		return false, err
	}
	changed = d.setGossipKey(keys[0])
	for _, m := range d.replicas() {
		m.useDigestKey()
	}
	return changed, nil
}

// replaceMaps replaces the running replicas with list. Running replicas whose settings are also
// in list continue to run.
func (d *Daemon) replaceMaps(ctx context.Context, g *errgroup.Group, list []*replica) Reloaded {
	done := Reloaded{Added: []string{}, Removed: []string{}}
	stale, fresh := d.keepUnchanged(list)
	d.assignments.reorder(list)
	d.maps.Store(&list)
	for _, m := range stale {
		done.Removed = append(done.Removed, m.name)
		m.end()
		if d.replica(m.name) == nil {
			d.state.removeIdentity(m.name)
		}
	}
	for _, m := range fresh {
		done.Added = append(done.Added, m.name)
		m.start(ctx, g)
	}
	d.poke()
	return done
}

// keepUnchanged replaces the replicas in list whose settings have not changed by the running ones. It returns
// the running replicas that are not in list, and the replicas of list that do not run yet.
func (d *Daemon) keepUnchanged(list []*replica) (stale, fresh []*replica) {
	old, ready := d.replicas(), d.mapsReady().Ready
	for i, m := range list {
		if at := slices.IndexFunc(old, m.sameSettings); at >= 0 {
			list[i] = old[at]
			continue
		}
		m.exempt = ready
		fresh = append(fresh, m)
	}
	for _, m := range old {
		if !slices.Contains(list, m) {
			stale = append(stale, m)
		}
	}
	return stale, fresh
}
