package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// Resync is the progress of a resync.
type Resync struct {
	Waiting []string `json:"waiting"` // names of the peers that have not finished
	Done    int      `json:"done"`    // records received from peers, of Total
	Total   int      `json:"total"`
	Over    bool     `json:"over,omitempty"`
	Peers   []string `json:"peers,omitempty"` // with Over: the live peers
	Error   string   `json:"error,omitempty"`
}

// progressPause is the minimum time between two progress messages to the client of a resync.
const progressPause = 500 * time.Millisecond

// serveResync executes a resync of a map and streams its progress until it ends.
func (a *admin) serveResync(w http.ResponseWriter, r *http.Request) {
	m, t, _ := a.daemon.mapFor(w, r)
	if m == nil {
		return
	}
	a.daemon.log.Info("resync requested", "map", m.name, "live", t.Stats().Live)
	w.Header().Set("Content-Type", "application/x-ndjson")
	encoder, control := json.NewEncoder(w), http.NewResponseController(w)
	send := func(s Resync) {
		if err := errors.Join(encoder.Encode(s), control.Flush()); err != nil {
			a.daemon.log.Debug("resync client disconnected", "error", err)
		}
	}
	var last time.Time
	err := a.daemon.replicator.Resync(r.Context(), m.name, func(peers []string, done, total int) {
		if time.Since(last) >= progressPause {
			last = time.Now()
			send(Resync{Waiting: peers, Done: done, Total: total})
		}
	})
	end := Resync{Over: true}
	for _, p := range a.daemon.replicator.Status() {
		end.Peers = append(end.Peers, p.Node)
	}
	if err != nil {
		end = Resync{Error: err.Error()}
	}
	send(end)
}

// Resync requests a full sync of a map from all live peers and a comparison, and calls fn with
// the progress, and at the end with Over. It returns nil when this node holds the records of the peers and the digests
// agree.
func (c *Client) Resync(ctx context.Context, name string, fn func(*Resync)) error {
	over := false
	err := lines(ctx, c, http.MethodPut, "/resync/"+url.PathEscape(name), func(s *Resync) error {
		if s.Error != "" {
			return errors.New(s.Error)
		}
		over = s.Over
		fn(s)
		return nil
	})
	if err == nil && !over {
		err = errors.Join(errors.New("the daemon stopped before the end of the resync"), ctx.Err())
	}
	return err
}
