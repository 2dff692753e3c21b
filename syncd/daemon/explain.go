package daemon

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/events"
	"mapsync/syncd/schema/filter"
	"mapsync/syncd/table"
)

// Limits of an Explanation.
const (
	// MaxExplained is the maximum number of keys.
	MaxExplained = 10
	// maxExplainedEvents is the maximum number of events of a key, the latest ones.
	maxExplainedEvents = 5
)

// Explanation is what a node has of some keys of a map.
type Explanation struct {
	State MapState       `json:"state"`
	Error string         `json:"error,omitempty"` // why the map is not replicated
	Keys  []ExplainedKey `json:"keys"`
	// More is true if more keys meet the conditions than MaxExplained.
	More bool `json:"more,omitempty"`
}

// RecordState is what the table of a node has of a key.
type RecordState string

// The states.
const (
	RecordNone    RecordState = "none"
	RecordLive    RecordState = "live"
	RecordDeleted RecordState = "deleted"
	RecordExpired RecordState = "expired" // deleted by expiry; a kernel map may still hold it
)

// KernelState is what the kernel map of a node has of a key.
type KernelState string

// The states.
const (
	KernelUnknown KernelState = "unknown" // no map is attached, or the key has no form in it
	KernelAbsent  KernelState = "absent"
	KernelSame    KernelState = "same"    // it means the same as the live record
	KernelDiffers KernelState = "differs" // from the live record
	KernelPresent KernelState = "present" // there is no live record
)

// ExplainedKey is what a node has of a key.
type ExplainedKey struct {
	Key         string      `json:"key"` // as text
	Record      RecordState `json:"record"`
	Value       string      `json:"value,omitempty"` // of a live record, as text
	Owner       string      `json:"owner,omitempty"` // empty: not adopted yet
	Incarnation uint64      `json:"incarnation,omitempty,string"`
	Changed     time.Time   `json:"changed,omitzero"` // time of the version; absent: older than syncd
	Version     uint64      `json:"version,omitempty,string"`
	Kernel      KernelState `json:"kernel"`
	KernelValue string      `json:"kernel_value,omitempty"` // if the kernel map has an entry that the table has not
	// Reasons are why the node has the key in this state, for operators.
	Reasons []string `json:"reasons,omitempty"`
	// Events are the latest events of the node that name the key.
	Events []events.Event `json:"events,omitempty"`
}

// ExplainQuery selects the keys that an Explanation is about.
type ExplainQuery struct {
	Keys  []string // as text, at most MaxExplained
	Where []string // conditions like "dport=443", instead of keys; an entry must meet all of them
}

func (q *ExplainQuery) path(name string) string {
	return "/explain/" + url.PathEscape(name) + "?" + url.Values{"key": q.Keys, "where": q.Where}.Encode()
}

// explainer explains keys of one map.
type explainer struct {
	d       *Daemon
	m       *replica
	l       *lister
	refused map[string][]string // why an entry is not replicated, by key
	result  Explanation
}

func (d *Daemon) serveExplain(w http.ResponseWriter, r *http.Request) {
	m, t, s := d.mapFor(w, r)
	if m == nil {
		return
	}
	if node, asked := r.Context().Value(askingNode{}).(string); asked && !d.mayRead(m.name, node) {
		http.Error(w, fmt.Sprintf("not allowed: read-from of %s does not have %q", d.self.Node, node), http.StatusForbidden)
		return
	}
	q := r.URL.Query()
	keys, where := q["key"], q["where"]
	l, err := newLister(d, t, s, url.Values{"form": {string(FormText)}, "tombstones": {"true"}, "where": where})
	if err == nil && (len(keys) == 0) == (len(where) == 0) || len(keys) > MaxExplained {
		err = fmt.Errorf("give up to %d keys, or conditions", MaxExplained)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer(d, func() Explanation { return d.explain(m, l, keys) })(w, r)
}

// explain explains keys, or those that meet the conditions of l.
func (d *Daemon) explain(m *replica, l *lister, texts []string) Explanation {
	st := m.status()
	x := &explainer{d: d, m: m, l: l, refused: make(map[string][]string), result: Explanation{State: st.State, Error: st.Error, Keys: []ExplainedKey{}}}
	keys := make([][]byte, len(texts))
	for i, text := range texts {
		keys[i] = x.keyOf(text)
	}
	if len(texts) == 0 {
		keys = x.collect(nil, MaxExplained+1)
		if x.result.More = len(keys) > MaxExplained; x.result.More {
			keys = keys[:MaxExplained]
		}
		for _, key := range keys {
			texts = append(texts, string(l.printer.AppendKey(nil, key)))
		}
	}
	x.findRefused(texts)
	for i, key := range keys {
		x.result.Keys = append(x.result.Keys, x.explain(texts[i], key, &st))
	}
	return x.result
}

// keyOf returns the key with a text, or nil if this node can have none.
func (x *explainer) keyOf(text string) []byte {
	same := func(key []byte) bool { return string(x.l.printer.AppendKey(nil, key)) == text }
	keys := filter.ParseKey(x.l.schema, x.d.namesIn(x.l.t), text)
	if i := slices.IndexFunc(keys, same); i >= 0 {
		return keys[i]
	}
	// The text may have what only a comparison with each key can find, such as an array.
	if found := x.collect(same, 1); len(found) > 0 {
		return found[0]
	}
	return nil
}

// collect returns the keys of up to limit records that meet the conditions and match. A nil match accepts all.
func (x *explainer) collect(match func(key []byte) bool, limit int) (keys [][]byte) {
	l := x.l
	cursor := l.t.NewCursor(0)
	defer cursor.Close()
	st := l.t.Stats()
	for left, more := listChunk+listLaps*(st.Live+st.Tombstones), true; more && left > 0 && len(keys) < limit; {
		times := l.times()
		var n int
		n, more = l.read(cursor, true, &times)
		left -= n
		for i := range l.entries {
			key := l.entries[i].key
			seen := slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
			if !seen && len(keys) < limit && (match == nil || match(key)) {
				keys = append(keys, bytes.Clone(key))
			}
		}
		l.entries, l.bytes = l.entries[:0], l.bytes[:0]
	}
	return keys
}

// findRefused finds the entries that this node cannot send or hold.
func (x *explainer) findRefused(texts []string) {
	wanted := make(map[string]bool)
	for _, text := range texts {
		wanted[text] = true
	}
	for _, e := range x.d.replicator.ExceptionsOf(x.m.name, wanted) {
		text := "this node cannot send it: " + e.Reason
		if e.Peer != "" {
			text = fmt.Sprintf("this node cannot hold it as %s sends it: %s", e.Peer, e.Reason)
		}
		x.refused[e.Key] = append(x.refused[e.Key], text)
	}
}

func (x *explainer) explain(text string, key []byte, st *MapStatus) ExplainedKey {
	e := ExplainedKey{Key: text, Record: RecordNone, Kernel: KernelUnknown, Reasons: x.refused[text]}
	var rec table.Record
	var value []byte
	if key != nil {
		x.l.t.View(func(tx *table.Tx) {
			if tx.Get(key, &rec) {
				value = bytes.Clone(rec.Value)
				e.setRecord(&rec, tx.Owner(rec.Owner))
			}
		})
		e.setKernel(x, key, value)
	} else {
		e.Reasons = append(e.Reasons, "no record here has this key, and the kernel map is not read: the text is not that of a key of this node's layout, or has an array")
	}
	e.Reasons = append(e.Reasons, x.reasons(&e, &rec, st)...)
	all := x.d.events.Since(time.Time{}, maxEvents).Events
	all = slices.DeleteFunc(all, func(v events.Event) bool { return v.Map != x.m.name || !strings.Contains(v.Details, text) })
	e.Events = all[max(0, len(all)-maxExplainedEvents):]
	return e
}

// setRecord sets what the table has of the key.
func (e *ExplainedKey) setRecord(rec *table.Record, owner table.Owner) {
	e.Record = RecordLive
	switch {
	case rec.Expired:
		e.Record = RecordExpired
	case rec.Delete:
		e.Record = RecordDeleted
	}
	e.Changed, e.Version = changedAt(rec.Version), uint64(rec.Version)
	if rec.Version != 0 {
		e.Owner, e.Incarnation = owner.Node, owner.Incarnation
	}
}

// setKernel sets what the kernel map has of the key. value is that of the record, nil if it is not live.
func (e *ExplainedKey) setKernel(x *explainer, key, value []byte) {
	times, printer := x.l.times(), x.l.printer
	if value != nil {
		e.Value = string(printer.AppendValue(nil, key, value, &times))
	}
	x.m.mu.Lock()
	a := x.m.kernel
	x.m.mu.Unlock()
	if a == nil {
		return
	}
	stored, err := a.m.Peek(key)
	switch {
	case err != nil:
		e.Reasons = append(e.Reasons, "the kernel map cannot be read: "+err.Error())
	case stored == nil:
		e.Kernel = KernelAbsent
	case value == nil:
		e.Kernel = KernelPresent
	case x.l.t.EqualCompared(key, value, stored):
		e.Kernel = KernelSame
	default:
		e.Kernel = KernelDiffers
	}
	if e.Kernel == KernelPresent || e.Kernel == KernelDiffers {
		e.KernelValue = string(printer.AppendValue(nil, key, stored, &times))
	}
}

// reasons returns why the table and the kernel map have the key in their states.
func (x *explainer) reasons(e *ExplainedKey, rec *table.Record, st *MapStatus) (list []string) {
	add := func(apply bool, text string) {
		if apply {
			list = append(list, text)
		}
	}
	replicating := st.State == MapReplicating || st.State == MapSyncing
	add(!replicating, fmt.Sprintf("the map is %s: %s", st.State, cmp.Or(st.Error, st.Waiting, "its entries are not replicated now")))
	add(rec.Dirty && e.Kernel != KernelSame && st.Failed == 0, "it is about to be written to the kernel map")
	if e.Record == RecordLive && e.Kernel == KernelAbsent {
		switch {
		case st.Failed > 0:
			list = append(list, fmt.Sprintf("the kernel map has refused %d entries, of which this may be one, the latest because of: %s", st.Failed, st.LastFailure))
		case x.m.attachedLRU():
			list = append(list, "the LRU map has evicted it, or a program has deleted it")
		case !rec.Dirty:
			list = append(list, "a program has deleted it: a scan reads the key again")
		}
	}
	add(e.Record == RecordNone && e.Kernel == KernelPresent && replicating, "no hook has shown the entry of the kernel map; the next scan adds it, unless max-records-factor limits the table")
	add(e.Record == RecordDeleted && e.Kernel == KernelPresent && !rec.Dirty, "the kernel map has an entry again; a scan reads the key again")
	add(rec.Inferred, "no node has sent the delete: this node has concluded it from an answer of the owner")
	add(rec.Named, "peers have named the owner only: the owner may have another value")
	add(rec.Undecided, "the kernel map lacks it since a restart, and this node has not decided yet whether the entry has ended")
	if e.Record == RecordNone {
		list = append(list, x.d.behind(x.m.name)...)
	}
	return list
}

// behind returns from which peers this node has not received all records of a map.
func (d *Daemon) behind(name string) (list []string) {
	for _, p := range d.replicator.Status() {
		for i := range p.Maps {
			m := &p.Maps[i]
			if m.Name != name || m.CaughtUp {
				continue
			}
			text := fmt.Sprintf("this node has not received all records of %s: %s", p.Node, m.State)
			if m.Error != "" {
				text += ", " + m.Error
			}
			list = append(list, text)
		}
	}
	return list
}
