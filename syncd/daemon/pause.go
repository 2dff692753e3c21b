package daemon

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Pause is whether the replication of a map is paused.
type Pause struct {
	// Since is when the pause began, zero: the map is replicated.
	Since time.Time `json:"since,omitzero"`
}

// pausedSince returns when the replication of the map was paused, or zero. It takes no lock.
func (m *replica) pausedSince() time.Time {
	if at := m.paused.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// pause stops the replication of the map with all peers, both ways, or continues it. Records of both sides stay. A restart of syncd, and a
// reload that changes the settings of the map, end a pause.
func (m *replica) pause(paused bool) (p Pause, changed bool, err error) {
	now := time.Now()
	if paused {
		changed = m.paused.CompareAndSwap(nil, &now)
	} else {
		changed = m.paused.Swap(nil) != nil
	}
	if changed {
		err = m.daemon.replicator.UpdateAccess(m.name)
	}
	return Pause{m.pausedSince()}, changed, err
}

// servePause pauses or resumes the replication of a map.
func (a *admin) servePause(w http.ResponseWriter, r *http.Request) {
	m, _, _ := a.daemon.mapFor(w, r)
	if m == nil {
		return
	}
	if r.Method == http.MethodPut && a.daemon.drain.begun() {
		http.Error(w, "the node is drained, or is being drained: `syncd drain --undo` first", http.StatusConflict)
		return
	}
	p, changed, err := m.pause(r.Method == http.MethodPut)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	switch by := callerFrom(r.Context()).attrs(); {
	case !changed:
	case p.Since.IsZero():
		m.log.Info("map resumed", by...)
	default:
		m.log.Warn("map paused", append(by, "hint", "`syncd resume MAP` ends the pause")...)
	}
	answer(a.daemon, func() Pause { return p })(w, r)
}

// PauseMap stops the replication of a map with all peers, both ways, until ResumeMap or the end of the daemon.
func (c *Client) PauseMap(ctx context.Context, name string) (Pause, error) {
	return ask[Pause](ctx, c, http.MethodPut, "/pause/"+url.PathEscape(name))
}

// ResumeMap ends a pause.
func (c *Client) ResumeMap(ctx context.Context, name string) (Pause, error) {
	return ask[Pause](ctx, c, http.MethodDelete, "/pause/"+url.PathEscape(name))
}
