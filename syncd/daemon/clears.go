package daemon

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/table"
)

// ClearStatus is a clear of a map: a process has deleted nearly all entries of this node and of nodes that have left. The
// deletes are not replicated, and syncd restores the entries.
type ClearStatus struct {
	At       time.Time `json:"at"`
	Entries  int       `json:"entries"`
	Restored bool      `json:"restored"` // false: the clear is in progress, or its entries are being restored
	// Process is the process that made most of the deletes, in the initial PID namespace. 0: unknown. ProcessAge is the time
	// since its start at the first of its deletes.
	Process    uint32  `json:"process,omitempty"`
	ProcessAge float64 `json:"process_age_seconds,omitempty"`
}

func clearStatus(c table.Clear) *ClearStatus {
	if c.At == 0 {
		return nil
	}
	return &ClearStatus{
		At: time.Unix(0, c.At), Entries: c.Entries, Restored: c.Restored,
		Process: c.Caller.ID, ProcessAge: c.Caller.Age.Seconds(),
	}
}

// latestClear returns the latest clear of a table that no operator has decided about.
func latestClear(t *table.Table) (c table.Clear) {
	t.View(func(tx *table.Tx) { c = tx.LatestClear() })
	return c
}

// clears returns the value of the setting clears for the map.
func (m *replica) clears() string {
	if m.daemon.config.HoldsClears(m.name) {
		return config.ClearsHold
	}
	return config.ClearsReplicate
}

// logClear logs a clear, and once more when its entries are restored.
func (m *replica) logClear() {
	t, _ := m.current()
	if t == nil {
		return
	}
	c := latestClear(t)
	m.mu.Lock()
	last := m.loggedClear
	m.loggedClear = c
	m.mu.Unlock()
	attrs := []any{"entries", c.Entries, "process", c.Caller.ID, "process_age_seconds", c.Caller.Age.Seconds()}
	if c.At != 0 && c.At != last.At {
		m.log.Warn("map was cleared, the deletes are not replicated", append(attrs,
			"hint", "`syncd clears release "+m.name+"` deletes the entries on all nodes, `syncd clears restore "+m.name+"` keeps them and ends the problem")...)
	}
	if c.At != 0 && c.Restored && (c.At != last.At || !last.Restored) {
		m.log.Info("entries restored after a clear", attrs...)
	}
}

// Decided is the result of a decision about a clear.
type Decided struct {
	Entries int `json:"entries"` // that were deleted, or stay
}

// decideClear makes the decision of an operator about the latest clear of a map.
func (d *Daemon) decideClear(m *replica, t *table.Table, release bool, by caller) Decided {
	var done Decided
	now := d.clock.now()
	for next, more := uint32(0), true; more; more = next != 0 {
		t.Update(func(tx *table.Tx) {
			var n int
			n, next = tx.DecideClear(release, now, next, removeChunk)
			done.Entries += n
		})
	}
	attrs := append(by.attrs(), "map", m.name, "entries", done.Entries)
	if release {
		d.log.Warn("clear released, entries deleted on all nodes", append(attrs, "hint", hintRemoved)...)
	} else {
		d.log.Info("clear decided, entries stay", attrs...)
	}
	return done
}

func (a *admin) serveDecideClear(w http.ResponseWriter, r *http.Request) {
	m, t, _ := a.daemon.mapFor(w, r)
	if m == nil {
		return
	}
	decision := r.PathValue("decision")
	switch {
	case decision != "release" && decision != "restore":
		http.Error(w, fmt.Sprintf("decision %q is unknown: release or restore", decision), http.StatusBadRequest)
	case latestClear(t).At == 0:
		http.Error(w, "no clear of map "+m.name+" waits for a decision", http.StatusConflict)
	case decision == "release" && a.daemon.losses.open() != 0: // an entry may have been written since
		http.Error(w, "events were lost, and a write of an entry since the clear may be one of them: release again once `syncd status` shows that the losses "+
			"are repaired; a restart of syncd forgets the clear; docs/night.md#losses-open", http.StatusConflict)
	default:
		var done Decided
		keepAlive(w, interim, func() { done = a.daemon.decideClear(m, t, decision == "release", callerFrom(r.Context())) })
		answer(a.daemon, func() Decided { return done })(w, r)
	}
}

// ReleaseClear deletes, on all nodes, the entries that the latest clear of a map has deleted, except those that have
// changed since.
func (c *Client) ReleaseClear(ctx context.Context, name string) (Decided, error) {
	return ask[Decided](ctx, c, http.MethodPut, "/clears/release/"+url.PathEscape(name))
}

// RestoreClear restores the entries of the latest clear of a map at once, and ends the problem.
func (c *Client) RestoreClear(ctx context.Context, name string) (Decided, error) {
	return ask[Decided](ctx, c, http.MethodPut, "/clears/restore/"+url.PathEscape(name))
}
