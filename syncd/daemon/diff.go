package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"mapsync/syncd/replicate"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// DiffQuery selects the peers of a comparison and the form of its output.
type DiffQuery struct {
	Peer string // empty: all live peers
	Form Form   // of keys and values; empty: FormJSON
}

// DiffKind is how an entry differs between this node and a peer.
type DiffKind string

// The kinds. By the rule of versions, the newer version finally wins on both nodes. An entry with
// the kind only_here or only_there is missing on the other node.
const (
	DiffOnlyHere   DiffKind = "only_here"
	DiffOnlyThere  DiffKind = "only_there"
	DiffNewerHere  DiffKind = "newer_here"
	DiffNewerThere DiffKind = "newer_there"
	DiffValue      DiffKind = "value" // same version, other value
	// Entries that are not replicated, with the reason: this node cannot send them, this node
	// cannot hold them, or the peer cannot hold them.
	DiffUnsent      DiffKind = "unsent_here"
	DiffRefused     DiffKind = "refused_here"
	DiffRefusedPeer DiffKind = "refused_there"
	// DiffSummary is the kind of the last entry of each peer.
	DiffSummary DiffKind = "summary"
)

// DiffEntry is one entry that differs, the summary of a peer, or the reason why a peer could not
// be compared with.
type DiffEntry struct {
	Peer    string          `json:"peer"`
	Key     json.RawMessage `json:"key,omitempty"`   // in the form of the query
	Entry   string          `json:"entry,omitempty"` // key as text, of an entry that is not replicated
	Reason  string          `json:"reason,omitempty"`
	Kind    DiffKind        `json:"kind,omitempty"`
	Here    *DiffSide       `json:"here,omitempty"`
	There   *DiffSide       `json:"there,omitempty"`
	Summary *DiffResult     `json:"summary,omitempty"`
	Error   string          `json:"error,omitempty"`
}

// DiffResult is the summary of a comparison with one peer.
type DiffResult struct {
	Differ   int `json:"differ"`    // entries that differ, at most 10,000
	UnderWay int `json:"under_way"` // changes in flight during the comparison
	// Unsent, Refused and RefusedThere are the numbers of entries that are not replicated, by
	// kind. At most 64 entries of each kind are listed.
	Unsent       int `json:"unsent_here"`
	Refused      int `json:"refused_here"`
	RefusedThere int `json:"refused_there"`
	PeerUnsent   int `json:"unsent_there"` // only the peer lists them
	NotHeld      int `json:"not_written_there"`
	NotHeldHere  int `json:"not_written_here"` // of the peer's entries
	// Problem is set if the digests disagree although no divergent entry was found.
	Problem string `json:"problem,omitempty"`
}

// Clean reports whether both nodes hold the same entries.
func (r *DiffResult) Clean() bool {
	return r.Differ+r.Unsent+r.Refused+r.RefusedThere+r.PeerUnsent+r.NotHeld+r.NotHeldHere == 0 && r.Problem == ""
}

// DiffSide is the record of one entry at one node.
type DiffSide struct {
	Value       json.RawMessage `json:"value,omitempty"`
	Deleted     bool            `json:"deleted,omitempty"`
	Owner       string          `json:"owner"`
	Incarnation uint64          `json:"incarnation,string"`
	Changed     time.Time       `json:"changed,omitzero"` // time of the version
	Version     uint64          `json:"version,string"`
}

// compareTimeout bounds a comparison with one peer.
const compareTimeout = time.Minute

// differ writes the lines of a comparison.
type differ struct {
	*lister
	admin   *admin
	name    string // of the map
	w       http.ResponseWriter
	out     *bufio.Writer
	encoder *json.Encoder
}

// serveDiff writes the differences as JSON, one object per line.
func (a *admin) serveDiff(w http.ResponseWriter, r *http.Request) {
	peer, peers := r.URL.Query().Get("peer"), a.daemon.peerNames()
	if peer != "" && !slices.Contains(peers, peer) {
		http.Error(w, unknownName("peer", peer, "these are the peers of this node", peers), http.StatusNotFound)
		return
	}
	m, l := a.listerFor(w, r)
	if m == nil {
		return
	}
	out := bufio.NewWriter(w)
	d := &differ{lister: l, admin: a, name: m.name, w: w, out: out, encoder: json.NewEncoder(out)}
	err := d.diffAll(r.Context(), peer)
	if err = errors.Join(err, out.Flush()); err != nil {
		a.daemon.log.Debug("diff request aborted", "error", err)
	}
}

// diffAll writes the differences with one peer, or with all live peers if peer is empty. If
// peer is empty, it also writes an error for each expected peer that is not live. It writes one
// error if no peer is live or expected.
func (d *differ) diffAll(ctx context.Context, peer string) error {
	if peer != "" {
		return d.diff(ctx, peer)
	}
	compared := 0
	for _, p := range d.admin.daemon.replicator.Status() {
		compared++
		if err := d.diff(ctx, p.Node); err != nil {
			return err
		}
	}
	now := time.Now()
	_, absent := d.admin.daemon.redundancy(now)
	for i := range absent {
		if !absent[i].Expected {
			continue
		}
		compared++
		e := DiffEntry{Peer: absent[i].Node, Error: "not compared: " + absent[i].text(now)}
		if err := d.encoder.Encode(e); err != nil {
			return fmt.Errorf("write differences: %w", err)
		}
	}
	if compared > 0 {
		return nil
	}
	return d.encoder.Encode(DiffEntry{Error: "not compared: no peer is alive"})
}

// diff writes the differences with one peer, and a summary.
func (d *differ) diff(ctx context.Context, peer string) error {
	c, err := d.compare(ctx, peer)
	if err != nil {
		return d.encoder.Encode(DiffEntry{Peer: peer, Error: err.Error()})
	}
	result := DiffResult{UnderWay: c.InFlight}
	known, list := d.admin.notReplicated(d.name, peer, &result)
	d.t.View(func(tx *table.Tx) {
		_, failed, evicted := tx.RecordsOf(peer)
		result.NotHeldHere = failed + evicted
	})
	for i := range c.Differences {
		x := &c.Differences[i]
		if known[string(d.printer.AppendKey(nil, x.Key))] {
			continue // it is in the other list, with the reason
		}
		result.Differ++
		e := DiffEntry{Peer: peer, Key: d.appendKey(nil, x.Key), Kind: diffKind(x), Here: d.side(x.Key, x.Here), There: d.side(x.Key, x.There)}
		if err := d.encoder.Encode(e); err != nil {
			return fmt.Errorf("write differences: %w", err)
		}
	}
	for i := range list {
		if err := d.encoder.Encode(&list[i]); err != nil {
			return fmt.Errorf("write differences: %w", err)
		}
	}
	result.Problem = d.admin.unexplained(d.name, peer, &result)
	return d.encoder.Encode(DiffEntry{Peer: peer, Kind: DiffSummary, Summary: &result})
}

// compare compares the map with that of a peer. The lines of earlier peers reach the client first.
func (d *differ) compare(ctx context.Context, peer string) (c replicate.Comparison, err error) {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	if err := d.out.Flush(); err != nil {
		return c, err
	}
	keepAlive(d.w, emptyLine, func() { c, err = d.admin.daemon.replicator.Compare(ctx, d.name, peer) })
	return c, err
}

// notReplicated returns the entries of a map that are not replicated with a peer, and their keys
// as text. It sets their numbers in r.
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
		r.RefusedThere, r.NotHeld = int(m.Report.Refused), int(m.Report.Failed+m.Report.Evicted)
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

// unexplained returns a remedy if the digests disagree although no divergent entry was found, or
// "".
func (a *admin) unexplained(name, peer string, r *DiffResult) string {
	m := a.peerMap(name, peer)
	if m == nil || r.Differ > 0 || r.UnderWay > 0 || m.InSync && m.Divergent == 0 {
		return ""
	}
	return fmt.Sprintf("digests do not agree, but no divergent entry was found: run `syncd resync %s`", name)
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

func (l *lister) side(key []byte, h *replicate.DiffSide) *DiffSide {
	if h == nil {
		return nil
	}
	s := &DiffSide{
		Deleted: h.Value == nil, Owner: h.Owner.Node, Incarnation: h.Owner.Incarnation,
		Changed: changedAt(h.Version), Version: uint64(h.Version),
	}
	if h.Value != nil {
		times := l.times()
		s.Value = l.appendValue(nil, key, h.Value, &times)
	}
	return s
}

// mapFor returns the replica in a request, its table and its schema. If the daemon does not have
// them, it responds with an error and returns nil.
func (d *Daemon) mapFor(w http.ResponseWriter, r *http.Request) (*replica, *table.Table, *schema.Schema) {
	m := d.replica(r.PathValue("map"))
	if m == nil {
		http.Error(w, UnknownMap(r.PathValue("map"), d.mapNames()), http.StatusNotFound)
		return nil, nil, nil
	}
	t, s := m.current()
	if t == nil {
		http.Error(w, "the kernel map has not appeared yet: its layout is unknown", http.StatusServiceUnavailable)
		return nil, nil, nil
	}
	return m, t, s
}

// Diff calls fn for each entry of a map that differs from a peer's entry, for each error and for
// each summary. It stops when fn returns an error.
func (c *Client) Diff(ctx context.Context, name string, q DiffQuery, fn func(*DiffEntry) error) error {
	if q.Form == "" {
		q.Form = FormJSON
	}
	path := "/diff/" + url.PathEscape(name) + "?" + url.Values{"form": {string(q.Form)}, "peer": {q.Peer}}.Encode()
	return lines(ctx, c, http.MethodGet, path, fn)
}

// lines sends a request and calls fn with each line of the response, until fn returns an error.
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
