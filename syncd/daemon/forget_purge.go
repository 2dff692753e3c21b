package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"mapsync/syncd/table"
)

// Removed is the result of a forget or a purge.
type Removed struct {
	Maps []RemovedRecords `json:"maps"` // in the order of the settings
}

// RemovedRecords is the number of records removed from one map.
type RemovedRecords struct {
	Map     string `json:"map"`
	Records int    `json:"records"`
}

// removeChunk is the number of records that are checked while the table's lock is held once.
const removeChunk = 1024

// ErrOwner is wrapped by the error of a forget of this node's own records.
var ErrOwner = errors.New("cannot remove records of this node itself")

// ErrLiveOwner is wrapped by the error of a forget whose owner is live.
var ErrLiveOwner = errors.New("the owner is live and sends its records (--force removes them nevertheless)")

// unknownOwner is the error of a forget of an owner that does not exist.
type unknownOwner struct {
	name  string
	names []string // of the owners that exist
}

func (e unknownOwner) Error() string {
	return unknownName("owner", e.name, "no record and no known node has it, these are the owners", e.names)
}

// forget removes the records of an owner from maps, on all nodes. It refuses a live owner unless
// force is set, and an owner that does not exist.
func (d *Daemon) forget(owner string, maps []*replica, force bool, by caller) (Removed, error) {
	if owner == "" || owner == d.self.Node {
		return Removed{}, fmt.Errorf("forget owner %q: %w", owner, ErrOwner)
	}
	if names := d.ownerNames(); !slices.Contains(names, owner) {
		return Removed{}, unknownOwner{owner, names}
	}
	live := d.liveOwner(owner)
	if live && !force {
		return Removed{}, fmt.Errorf("forget owner %q: %w", owner, ErrLiveOwner)
	}
	done := d.remove(maps, &table.Selection{Owner: owner})
	for _, m := range done.Maps {
		attrs := append(by.attrs(), "map", m.Map, "owner", owner, "records", m.Records, "live", live)
		d.log.Warn("records of an owner removed from all nodes", append(attrs, "hint", hintRemoved)...)
	}
	return done, nil
}

// hintRemoved is the hint in the log lines about removed records.
const hintRemoved = "entries that a load balancer still uses come back with its next write"

// liveOwner reports whether a node is a live member, or its stream to this node is up.
func (d *Daemon) liveOwner(owner string) bool {
	for _, c := range d.replicator.Contacts() {
		if c.Node == owner && (c.Live || c.Connected) {
			return true
		}
	}
	return false
}

// purge removes, on all nodes, the orphaned records of a map and the records that do not fit into
// its kernel map here. Without a kernel map it only removes orphaned records, because records
// that did not fit into the former kernel map may fit into the next one.
func (d *Daemon) purge(m *replica, by caller) Removed {
	done := d.remove([]*replica{m}, &table.Selection{Orphaned: true, Failed: m.attached()})
	for _, r := range done.Maps {
		attrs := append(by.attrs(), "map", r.Map, "records", r.Records)
		d.log.Warn("orphaned and failed records removed from all nodes", append(attrs, "hint", hintRemoved)...)
	}
	return done
}

// purgeAll removes all records of a map, on all nodes.
func (d *Daemon) purgeAll(m *replica, by caller) Removed {
	done := d.remove([]*replica{m}, &table.Selection{All: true})
	for _, r := range done.Maps {
		attrs := append(by.attrs(), "map", r.Map, "records", r.Records)
		d.log.Warn("all records of a map removed from all nodes", append(attrs, "hint", hintRemoved)...)
	}
	return done
}

// attached reports whether a kernel map is attached.
func (m *replica) attached() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kernel != nil
}

// ErrUsesUnseen is wrapped by the error of a purge of unused records if syncd has not observed uses for long enough.
var ErrUsesUnseen = errors.New("uses of entries are not visible (--force compares with the last change alone)")

// purgeUnused removes, on all nodes, the records of a map whose owner has left, and those that syncd has written here, which
// were neither changed nor used for a time. It refuses that if it has not observed uses for so long, unless force is set.
func (d *Daemon) purgeUnused(m *replica, t *table.Table, unused time.Duration, force bool, by caller) (Removed, error) {
	sel := table.Unused{For: unused, Changes: force}
	if !force {
		var err error
		if sel.Uses, err = d.usesFor(m, t, unused); err != nil {
			return Removed{}, fmt.Errorf("purge unused records of %s: %w", m.name, err)
		}
	}
	done := d.remove([]*replica{m}, &table.Selection{Unused: &sel})
	for _, r := range done.Maps {
		attrs := append(by.attrs(), "map", r.Map, "unused_for", unused.String(), "forced", force, "records", r.Records)
		d.log.Warn("unused records removed from all nodes", append(attrs, "hint", hintRemoved)...)
	}
	return done, nil
}

// usesFor returns the uses of the entries of a map. It fails unless they have been observed for a time. They are nil if each
// use changes the entry.
func (d *Daemon) usesFor(m *replica, t *table.Table, unused time.Duration) (table.Uses, error) {
	m.mu.Lock()
	a := m.kernel
	m.mu.Unlock()
	if a == nil || a.uses == nil && d.config.TakeoverField(m.name) == "" {
		return nil, fmt.Errorf("%w: takeover-expiry does not observe this map", ErrUsesUnseen)
	}
	now, missed := d.clock.now(), a.uses != nil && a.uses.Missed()
	var observed time.Duration
	t.Update(func(tx *table.Tx) {
		if missed {
			tx.PostponeTakeover(now)
		}
		observed = tx.TakeoverObserved(now)
	})
	if observed < unused {
		return nil, fmt.Errorf("%w: they have been observed for %s only", ErrUsesUnseen, observed.Truncate(time.Second))
	}
	if a.uses == nil {
		return nil, nil
	}
	return a.uses, nil
}

func (d *Daemon) remove(maps []*replica, sel *table.Selection) Removed {
	done := Removed{Maps: []RemovedRecords{}}
	for _, m := range maps {
		if t, _ := m.current(); t != nil {
			done.Maps = append(done.Maps, RemovedRecords{m.name, removeFrom(t, sel, d.clock.now())})
		}
	}
	return done
}

// removeFrom removes the selected records of a table and returns their number. It holds the
// table's lock for one chunk at a time. now is the time of the deletes, in ns of the wall clock.
func removeFrom(t *table.Table, sel *table.Selection, now int64) (removed int) {
	c := t.NewCursor(0)
	defer c.Close()
	for more := true; more; {
		t.Update(func(tx *table.Tx) {
			var n int
			n, more = tx.Remove(sel, now, c, removeChunk)
			removed += n
		})
	}
	return removed
}

func (a *admin) serveForget(w http.ResponseWriter, r *http.Request) {
	query, maps := r.URL.Query(), a.daemon.replicas()
	if name := query.Get("map"); query.Has("map") {
		r.SetPathValue("map", name)
		m, _, _ := a.daemon.mapFor(w, r)
		if m == nil {
			return
		}
		maps = []*replica{m}
	}
	var done Removed
	var err error
	keepAlive(w, interim, func() {
		done, err = a.daemon.forget(query.Get("owner"), maps, query.Get("force") == "true", callerFrom(r.Context()))
	})
	switch {
	case errors.Is(err, ErrOwner), errors.As(err, new(unknownOwner)):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		answer(a.daemon, func() Removed { return done })(w, r)
	}
}

func (a *admin) servePurge(w http.ResponseWriter, r *http.Request) {
	m, t, _ := a.daemon.mapFor(w, r)
	if m == nil {
		return
	}
	var done Removed
	var err error
	keepAlive(w, interim, func() { done, err = a.purge(m, t, r) })
	switch {
	case errors.Is(err, ErrUsesUnseen):
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		answer(a.daemon, func() Removed { return done })(w, r)
	}
}

func (a *admin) purge(m *replica, t *table.Table, r *http.Request) (Removed, error) {
	query, by := r.URL.Query(), callerFrom(r.Context())
	switch {
	case query.Get("all") == "true":
		return a.daemon.purgeAll(m, by), nil
	case !query.Has("unused-for"):
		return a.daemon.purge(m, by), nil
	}
	unused, err := time.ParseDuration(query.Get("unused-for"))
	if err != nil || unused <= 0 {
		return Removed{}, fmt.Errorf("unused-for %q: give a duration above 0", query.Get("unused-for"))
	}
	return a.daemon.purgeUnused(m, t, unused, query.Get("force") == "true", by)
}

// Forget removes the records of an owner from a map on all nodes, or from all maps if name is
// empty. The daemon refuses its own name and an owner that does not exist (ErrUse) and, unless force is set, a live owner.
func (c *Client) Forget(ctx context.Context, owner, name string, force bool) (Removed, error) {
	query := url.Values{"owner": {owner}, "force": {strconv.FormatBool(force)}}
	if name != "" {
		query.Set("map", name)
	}
	return ask[Removed](ctx, c, http.MethodPut, "/forget?"+query.Encode())
}

// Purge removes, on all nodes, the orphaned records of a map and the records that do not fit into
// the kernel map of the daemon.
func (c *Client) Purge(ctx context.Context, name string) (Removed, error) {
	return ask[Removed](ctx, c, http.MethodPut, "/purge/"+url.PathEscape(name))
}

// PurgeUnused removes, on all nodes, the records of a map whose owner has left, and those that syncd has written here, which were
// neither changed nor used for a time. Unless force is set, the daemon refuses if it has not observed uses for so long.
func (c *Client) PurgeUnused(ctx context.Context, name string, unused time.Duration, force bool) (Removed, error) {
	query := url.Values{"unused-for": {unused.String()}, "force": {strconv.FormatBool(force)}}
	return ask[Removed](ctx, c, http.MethodPut, "/purge/"+url.PathEscape(name)+"?"+query.Encode())
}

// PurgeAll removes all records of a map, on all nodes, those of live nodes included.
func (c *Client) PurgeAll(ctx context.Context, name string) (Removed, error) {
	return ask[Removed](ctx, c, http.MethodPut, "/purge/"+url.PathEscape(name)+"?all=true")
}
