package daemon

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"mapsync/syncd/replicate"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// digestKey returns the secret that digests of a map are made with: the same on all nodes,
// which have the gossip key in common, and unknown to who sends packets. Without
// a gossip key there is no secret, and the log has said so.
func (d *Daemon) digestKey(name string) []byte {
	var secret []byte
	if key := d.gossipKey.Load(); key != nil {
		secret = *key
	}
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte("mapsync digest of " + name))
	return mac.Sum(nil)
}

// setGossipKey sets the key that digest keys are made from, and reports whether it is another one.
func (d *Daemon) setGossipKey(key []byte) (changed bool) {
	old := d.gossipKey.Swap(&key)
	return old == nil || !bytes.Equal(*old, key)
}

// useDigestKey has the table make its digests with the key that is in use.
func (m *replica) useDigestKey() {
	if t, _ := m.current(); t != nil {
		t.Update(func(tx *table.Tx) { tx.SetDigestKey(m.daemon.digestKey(m.name)) })
	}
}

// DiffQuery says which differences of a map are wanted, and how.
type DiffQuery struct {
	Peer string // empty: all live peers
	Form Form   // of keys and values; empty: FormJSON
}

// DiffKind is how an entry differs between this node and a peer.
type DiffKind string

// The kinds. By the rule of versions the newer one wins in the end; one that is there on one
// side only, this node's or the peer's, is missing on the other.
const (
	DiffOnlyHere   DiffKind = "only_here"
	DiffOnlyThere  DiffKind = "only_there"
	DiffNewerHere  DiffKind = "newer_here"
	DiffNewerThere DiffKind = "newer_there"
	DiffValue      DiffKind = "value" // the same version with another value
	// Entries that are not replicated, with the reason: this node or the peer cannot send
	// them, or this node or the peer cannot hold them.
	DiffUnsent      DiffKind = "unsent_here"
	DiffRefused     DiffKind = "refused_here"
	DiffRefusedPeer DiffKind = "refused_there"
	// DiffSummary comes last of each peer.
	DiffSummary DiffKind = "summary"
)

// DiffEntry is one entry that differs, or the summary of a peer, or the reason why a peer
// could not be compared with.
type DiffEntry struct {
	Peer    string          `json:"peer"`
	Key     json.RawMessage `json:"key,omitempty"`   // as the query's form says
	Entry   string          `json:"entry,omitempty"` // its key as text, of one that is not replicated
	Reason  string          `json:"reason,omitempty"`
	Kind    DiffKind        `json:"kind,omitempty"`
	Here    *DiffSide       `json:"here,omitempty"`
	There   *DiffSide       `json:"there,omitempty"`
	Summary *DiffResult     `json:"summary,omitempty"`
	Error   string          `json:"error,omitempty"`
}

// DiffResult sums a comparison with one peer up.
type DiffResult struct {
	Differ   int `json:"differ"`    // entries that differ, at most 10,000
	UnderWay int `json:"under_way"` // changes that were being sent
	// Unsent, Refused and RefusedThere are how many entries are not replicated, by kind; at
	// most 64 each are listed.
	Unsent       int `json:"unsent_here"`
	Refused      int `json:"refused_here"`
	RefusedThere int `json:"refused_there"`
	PeerUnsent   int `json:"unsent_there"` // listed by the peer alone
	NotHeld      int `json:"not_written_there"`
	// Problem is set when digests differ and no entry was found that does.
	Problem string `json:"problem,omitempty"`
}

// Clean reports whether both nodes hold the same.
func (r *DiffResult) Clean() bool {
	return r.Differ+r.Unsent+r.Refused+r.RefusedThere+r.PeerUnsent+r.NotHeld == 0 && r.Problem == ""
}

// DiffSide is what one node holds.
type DiffSide struct {
	Value       json.RawMessage `json:"value,omitempty"`
	Deleted     bool            `json:"deleted,omitempty"`
	Owner       string          `json:"owner"`
	Incarnation uint64          `json:"incarnation,string"`
	Changed     time.Time       `json:"changed,omitzero"` // by the clock of its version
	Version     uint64          `json:"version,string"`
}

// Resync is how far a resync has come.
type Resync struct {
	Waiting []string `json:"waiting"` // peers
	Done    int      `json:"done"`    // records that they have told, of Total
	Total   int      `json:"total"`
	Over    bool     `json:"over,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// compareTimeout bounds a comparison with one peer.
const compareTimeout = time.Minute

// serveDiff answers with the differences, one a line.
func (a *admin) serveDiff(w http.ResponseWriter, r *http.Request) {
	m, l := a.listerFor(w, r)
	if m == nil {
		return
	}
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	err := a.diffAll(r.Context(), encoder, l, m.name, r.URL.Query().Get("peer"))
	if err = errors.Join(err, out.Flush()); err != nil {
		a.daemon.log.Debug("differences ended early", "error", err)
	}
}

// diffAll writes the differences with one peer, or with all that are live. Peers that are
// expected and not live are errors, and so is that there is none.
func (a *admin) diffAll(ctx context.Context, encoder *json.Encoder, l *lister, name, peer string) error {
	if peer != "" {
		return a.diff(ctx, encoder, l, name, peer)
	}
	compared := 0
	for _, p := range a.daemon.replicator.Status() {
		compared++
		if err := a.diff(ctx, encoder, l, name, p.Node); err != nil {
			return err
		}
	}
	now := time.Now()
	_, absent := a.daemon.redundancy(now)
	for i := range absent {
		if !absent[i].Expected {
			continue
		}
		compared++
		e := DiffEntry{Peer: absent[i].Node, Error: "not compared: " + absent[i].text(now)}
		if err := encoder.Encode(e); err != nil {
			return fmt.Errorf("write differences: %w", err)
		}
	}
	if compared > 0 {
		return nil
	}
	return encoder.Encode(DiffEntry{Error: "not compared: no peer is alive"})
}

// diff writes the differences with one peer, and a summary.
func (a *admin) diff(ctx context.Context, encoder *json.Encoder, l *lister, name, peer string) error {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	c, err := a.daemon.replicator.Compare(ctx, name, peer)
	if err != nil {
		return encoder.Encode(DiffEntry{Peer: peer, Error: err.Error()})
	}
	result := DiffResult{UnderWay: c.Passing}
	known, list := a.notReplicated(name, peer, &result)
	for i := range c.Differences {
		d := &c.Differences[i]
		if known[string(l.printer.AppendKey(nil, d.Key))] {
			continue // it is in the other list, with the reason
		}
		result.Differ++
		e := DiffEntry{Peer: peer, Key: l.key(d.Key), Kind: diffKind(d), Here: l.side(d.Here), There: l.side(d.There)}
		if err := encoder.Encode(e); err != nil {
			return fmt.Errorf("write differences: %w", err)
		}
	}
	for i := range list {
		if err := encoder.Encode(&list[i]); err != nil {
			return fmt.Errorf("write differences: %w", err)
		}
	}
	result.Problem = a.unexplained(name, peer, &result)
	return encoder.Encode(DiffEntry{Peer: peer, Kind: DiffSummary, Summary: &result})
}

// notReplicated returns the entries of a map that are not replicated with a peer, and their
// keys as text, and counts them.
func (a *admin) notReplicated(name, peer string, r *DiffResult) (known map[string]bool, list []DiffEntry) {
	known = make(map[string]bool)
	add := func(kind DiffKind, some []replicate.Exception) {
		for _, x := range some {
			known[x.Key] = true
			list = append(list, DiffEntry{Peer: peer, Kind: kind, Entry: x.Key, Reason: x.Reason})
		}
	}
	var unsent []replicate.Exception
	r.Unsent, unsent = a.daemon.replicator.Unsent(name)
	add(DiffUnsent, unsent)
	if m := a.peerMap(name, peer); m != nil {
		r.Refused, r.PeerUnsent = m.ExceptionCount, m.Unsent
		r.RefusedThere, r.NotHeld = int(m.Report.Refused), int(m.Report.Failed)
		add(DiffRefused, m.Exceptions)
		add(DiffRefusedPeer, m.Report.Exceptions)
	}
	return known, list
}

func (a *admin) peerMap(name, peer string) *replicate.MapStatus {
	for _, p := range a.daemon.replicator.Status() {
		for i := range p.Maps {
			if p.Node == peer && p.Maps[i].Name == name {
				return &p.Maps[i]
			}
		}
	}
	return nil
}

// unexplained returns what to do if digests differ and no entry was found that does.
func (a *admin) unexplained(name, peer string, r *DiffResult) string {
	m := a.peerMap(name, peer)
	if m == nil || r.Differ > 0 || r.UnderWay > 0 || m.Agreed && m.Divergent == 0 {
		return ""
	}
	return fmt.Sprintf("digests do not agree, and no entry was found that differs: `syncd resync %s` compares again from the beginning", name)
}

func diffKind(d *replicate.Difference) DiffKind {
	here, there := d.Here, d.There
	switch {
	case here == nil:
		return DiffOnlyThere
	case there == nil:
		return DiffOnlyHere
	}
	n := here.Owner.Compare(there.Owner)
	switch {
	case here.Version > there.Version, here.Version == there.Version && n > 0:
		return DiffNewerHere
	case here.Version < there.Version, n < 0:
		return DiffNewerThere
	}
	return DiffValue
}

func (l *lister) side(h *replicate.Held) *DiffSide {
	if h == nil {
		return nil
	}
	s := &DiffSide{
		Deleted: h.Value == nil, Owner: h.Owner.Node, Incarnation: h.Owner.Incarnation,
		Changed: changedAt(h.Version), Version: uint64(h.Version),
	}
	if h.Value != nil {
		times := l.times()
		s.Value = l.value(h.Value, &times)
	}
	return s
}

// progressPause is how often the client of a resync hears of it.
const progressPause = 500 * time.Millisecond

// serveResync has a map told again, and tells of it until it is done.
func (a *admin) serveResync(w http.ResponseWriter, r *http.Request) {
	m, t, _ := a.mapFor(w, r)
	if m == nil {
		return
	}
	a.daemon.log.Info("a resync was asked for", "map", m.name, "live", t.Stats().Live)
	w.Header().Set("Content-Type", "application/x-ndjson")
	encoder, control := json.NewEncoder(w), http.NewResponseController(w)
	say := func(s Resync) {
		if err := errors.Join(encoder.Encode(s), control.Flush()); err != nil {
			a.daemon.log.Debug("nobody hears of the resync any more", "error", err)
		}
	}
	var last time.Time
	err := a.daemon.replicator.Resync(r.Context(), m.name, func(peers []string, done, total int) {
		if time.Since(last) >= progressPause {
			last = time.Now()
			say(Resync{Waiting: peers, Done: done, Total: total})
		}
	})
	end := Resync{Over: true}
	if err != nil {
		end = Resync{Error: err.Error()}
	}
	say(end)
}

// mapFor returns the replica that a request is about, or answers that there is none.
func (a *admin) mapFor(w http.ResponseWriter, r *http.Request) (*replica, *table.Table, *schema.Schema) {
	m := a.daemon.replica(r.PathValue("map"))
	if m == nil {
		http.Error(w, "no such map: "+strings.Join(a.daemon.mapNames(), ", ")+" are replicated here", http.StatusNotFound)
		return nil, nil, nil
	}
	t, s := m.current()
	if t == nil {
		http.Error(w, "the map has not been there yet: its layout is not known", http.StatusServiceUnavailable)
		return nil, nil, nil
	}
	return m, t, s
}

// Diff calls fn for each entry of a map that differs from a peer's.
func (c *Client) Diff(ctx context.Context, name string, q DiffQuery, fn func(*DiffEntry) error) error {
	if q.Form == "" {
		q.Form = FormJSON
	}
	path := "/diff/" + url.PathEscape(name) + "?" + url.Values{"form": {string(q.Form)}, "peer": {q.Peer}}.Encode()
	return lines(ctx, c, http.MethodGet, path, fn)
}

// Resync has a map told again by all peers and compared, and calls fn as it goes on. It
// returns nil once this node holds what they told.
func (c *Client) Resync(ctx context.Context, name string, fn func(*Resync)) error {
	over := false
	err := lines(ctx, c, http.MethodPut, "/resync/"+url.PathEscape(name), func(s *Resync) error {
		if s.Error != "" {
			return errors.New(s.Error)
		}
		if over = s.Over; !over {
			fn(s)
		}
		return nil
	})
	if err == nil && !over {
		err = errors.Join(errors.New("the daemon stopped before the end of the resync"), ctx.Err())
	}
	return err
}

// lines calls fn with each line of an answer.
func lines[T any](ctx context.Context, c *Client, method, path string, fn func(*T) error) error {
	body, err := c.do(ctx, method, path)
	if err != nil {
		return err
	}
	defer body.Close()
	decoder := json.NewDecoder(body)
	for {
		var v T
		if err := decoder.Decode(&v); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read answer about %s: %w", path, err)
		}
		if err := fn(&v); err != nil {
			return err
		}
	}
}

// key returns a key in the lister's form.
func (l *lister) key(b []byte) json.RawMessage {
	switch l.form {
	case FormRaw:
		return quoted(hex.EncodeToString(b))
	case FormText:
		return quoted(string(l.printer.AppendKey(nil, b)))
	}
	return l.printer.AppendJSONKey(nil, b)
}

// value returns a value in the lister's form.
func (l *lister) value(b []byte, t *schema.Times) json.RawMessage {
	switch l.form {
	case FormRaw:
		return quoted(hex.EncodeToString(b))
	case FormText:
		return quoted(string(l.printer.AppendValue(nil, b, t)))
	}
	return l.printer.AppendJSONValue(nil, b, t)
}
