package replicate

import (
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

const (
	// maxExceptions bounds the entries that are remembered because a map cannot hold or
	// send them. Of more, digests do not agree.
	maxExceptions = 4096
	// maxExceptionKey and maxReason bound, in bytes, what is remembered of one.
	maxExceptionKey = 1024
	maxReason       = 256
	// maxListedExceptions bounds those in a status, and those that are remembered because the
	// table holds as many records as it may.
	maxListedExceptions = 64
	// exceptionLogInterval is the least time between two log lines about the exceptions
	// of one map.
	exceptionLogInterval = time.Minute
)

// Exception is an entry that one node has and another cannot hold.
type Exception struct {
	// Key is the entry's key, for people.
	Key string
	// Reason says why the entry cannot be sent or held.
	Reason string
}

// exceptions are the entries of one map and one sender that cannot be held here, or of one
// map that cannot be sent. All writers are one goroutine, or hold the table's lock: they
// need no other lock to read.
type exceptions struct {
	mu    sync.Mutex // guards the fields below against other readers
	byKey map[string]*exception
	more  int // that found no room since the full sync began
	// above is how many records were rejected because of the table's limit: since the full sync
	// began, or as the last comparison counted them. limits is how many of them byKey has.
	above, limits int
	walk          int  // number of the full sync
	whole         bool // it has ended

	latest   []byte // key of the newest one that was not logged; nil: none
	why      error  // of that
	loggedAt time.Time
}

// exception is one entry. Keys are those of the sender: on the wire of one that cannot be
// held, in the kernel map of one that cannot be sent.
type exception struct {
	version table.Version
	owner   table.Owner
	reason  string
	walk    int
	limit   bool // rejected because of the table's limit
}

// add remembers an entry.
func (e *exceptions) add(key []byte, version table.Version, owner table.Owner, why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.byKey[string(key)]
	if x == nil {
		if len(e.byKey)-e.limits >= maxExceptions || len(key) > maxExceptionKey {
			e.more++
			return
		}
		x = e.insert(key)
		if e.latest == nil {
			e.latest, e.why = slices.Clone(key), why
		}
	}
	x.version, x.owner, x.walk, x.reason = version, owner, e.walk, reasonOf(why)
}

// insert adds an entry. The lock is held.
func (e *exceptions) insert(key []byte) *exception {
	if e.byKey == nil {
		e.byKey = make(map[string]*exception)
	}
	x := &exception{}
	e.byKey[string(key)] = x
	return x
}

// reasonOf returns an error's text, cut to what is remembered.
func reasonOf(err error) string {
	return strings.ToValidUTF8(err.Error()[:min(len(err.Error()), maxReason)], "")
}

// settle forgets an entry that is held or gone.
func (e *exceptions) settle(key []byte) {
	if len(e.byKey) == 0 {
		return
	}
	if _, ok := e.byKey[string(key)]; ok {
		e.mu.Lock()
		e.drop(string(key))
		e.mu.Unlock()
	}
}

// begin starts a full sync: what it does not meet is forgotten by end.
func (e *exceptions) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.walk++
	e.more, e.above, e.whole = 0, 0, false
}

// end ends a full sync.
func (e *exceptions) end() {
	if e.whole {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.whole = true
	for key, x := range e.byKey {
		if x.walk != e.walk {
			e.drop(key)
		}
	}
}

// count returns how many entries there are.
func (e *exceptions) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.byKey) - e.limits + e.more + max(e.limits, e.above)
}

// each calls fn with up to limit entries, in the order of their keys.
func (e *exceptions) each(limit int, fn func(key, reason string)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.byKey) == 0 {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(e.byKey))[:min(limit, len(e.byKey))] {
		fn(key, e.byKey[key].reason)
	}
}

// list returns some of the entries with their keys as text.
func (e *exceptions) list(text func(key []byte) string) (list []Exception) {
	e.each(maxListedExceptions, func(key, reason string) {
		list = append(list, Exception{Key: text([]byte(key)), Reason: printable(reason)})
	})
	return list
}

// Unsent returns how many records of a map cannot be sent to any peer, because their keys
// cannot be encoded, and some of them.
func (r *Replicator) Unsent(name string) (count int, list []Exception) {
	m := r.localMaps()[name]
	if m == nil {
		return 0, nil
	}
	return m.unsent.count(), m.unsent.list(m.keyText)
}

// log calls fn with the number of entries, and the key of one and its reason, if there is a
// new one and none was logged for a while.
func (e *exceptions) log(now time.Time, fn func(count int, key []byte, why error)) {
	e.mu.Lock()
	key, why, count := e.latest, e.why, len(e.byKey)+e.more
	if key == nil || now.Sub(e.loggedAt) < exceptionLogInterval {
		e.mu.Unlock()
		return
	}
	e.latest, e.loggedAt = nil, now
	e.mu.Unlock()
	fn(count, key, why)
}

// loose returns what the digest of some nodes' records lacks here because of the exceptions:
// what they add there, less what the older records of these keys add here.
func (in *intake) loose(tx *table.Tx, of func(node string) bool) (sum uint64) {
	if len(in.excepted.byKey) == 0 {
		return 0
	}
	key := make([]byte, in.m.layout.KeySize)
	for wire, x := range in.excepted.byKey {
		if of(x.owner.Node) {
			sum += tx.LooseOf(x.owner, x.version)
		}
		if in.decoder.Key(key, []byte(wire)) != nil {
			continue
		}
		if owner, held, _, ok := tx.DigestOf(key); ok && of(owner) {
			sum -= held.Loose
		}
	}
	return sum
}

// except remembers a record that this node's map cannot hold. The table is locked.
func (in *intake) except(w *wireDelta, why error) {
	var owner table.Owner
	if int(w.owner) < len(in.ids) {
		owner = in.tx.Owner(in.ids[w.owner])
	}
	in.excepted.add(w.key, table.Version(w.version), owner, why)
}

func (in *intake) logExceptions(now time.Time) {
	in.excepted.log(now, func(count int, key []byte, why error) {
		in.l.r.opt.Logger.Warn("entries of peer cannot be held here: a failover to this node loses them",
			slog.String("peer", in.l.peer.Node), slog.String("map", in.m.name), slog.Int("entries", count),
			slog.String("first", in.printer.key(key)), slog.String("reason", reasonOf(why)), slog.String("hint", hintFor(why, in.m.name)))
	})
}

// hintFor returns what an operator can do about an exception.
func hintFor(err error, name string) string {
	switch {
	case errors.Is(err, schema.ErrPadding):
		return "the load balancer must clear a key, padding too, before it fills the key in"
	case errors.Is(err, schema.ErrLink):
		return "give all nodes interfaces of the same names"
	case errors.Is(err, schema.ErrRange):
		return "finish the upgrade of the load balancer: the field of this node's map is narrower"
	}
	return "syncd diff " + name + " lists the entries"
}

// noteUnsent takes in a record whose key cannot be encoded. The table is locked.
func (m *localMap) noteUnsent(tx *table.Tx, r *table.Record, why error) {
	if !r.Delete { // a peer that was not sent a record has none to delete
		m.unsent.add(r.Key, r.Version, tx.Owner(r.Owner), why)
	}
}

func (m *localMap) logUnsent(now time.Time, log *slog.Logger) {
	m.unsent.log(now, func(count int, key []byte, why error) {
		log.Warn("entries cannot be sent to peers: a failover loses them", slog.String("map", m.name),
			slog.Int("entries", count), slog.String("first", m.keyText(key)),
			slog.String("reason", reasonOf(why)), slog.String("hint", hintFor(why, m.name)))
	})
}

// leftOut is what the records that cannot be sent add to digests.
type leftOut []struct {
	node   string // of the owner
	digest table.Digest
	bucket int
}

// leftOut returns what to leave out of digests, and how many records cannot be sent. The
// table is locked.
func (m *localMap) leftOut(tx *table.Tx) (out leftOut, count int) {
	for key := range m.unsent.byKey {
		k := []byte(key)
		node, g, bucket, ok := tx.DigestOf(k)
		if ok {
			_, err := m.codec.AppendKey(nil, k)
			ok = err != nil // else an interface has come: the peer finds the difference
		}
		if !ok {
			m.unsent.settle(k)
			continue
		}
		out = append(out, struct {
			node   string
			digest table.Digest
			bucket int
		}{node, g, bucket})
	}
	return out, len(out) + m.unsent.more
}

// takeOut takes the records of some owners out of a digest, and of its parts unless those
// are nil.
func (l leftOut) takeOut(of func(node string) bool, g *table.Digest, parts *table.Buckets) {
	for i := range l {
		r := &l[i]
		if !of(r.node) {
			continue
		}
		g.Sum, g.Loose, g.Live = g.Sum-r.digest.Sum, g.Loose-r.digest.Loose, g.Live-1
		if parts != nil {
			parts[r.bucket] -= r.digest.Sum
		}
	}
}

// keyText returns a key as the kernel map has it for people.
func (m *localMap) keyText(key []byte) string {
	return string(schema.NewPrinter(m.layout.Schema, m.layout.Links).AppendKey(nil, key))
}

// wirePrinter writes keys for people that are on the wire.
type wirePrinter struct {
	printer *schema.Printer
	decoder *schema.Decoder // nil: not possible
	size    int
}

// newWirePrinter returns what prints the keys of a sender with a schema.
func newWirePrinter(sender *schema.Schema) wirePrinter {
	links := &nameLinks{}
	d, err := schema.NewDecoder(sender, sender, links)
	if err != nil {
		return wirePrinter{}
	}
	return wirePrinter{printer: schema.NewPrinter(sender, links), decoder: d, size: sender.Key.Size}
}

// key returns a key as text, or in hex if that cannot be.
func (p *wirePrinter) key(wire []byte) string {
	if p.decoder != nil {
		if key := make([]byte, p.size); p.decoder.Key(key, wire) == nil {
			return string(p.printer.AppendKey(nil, key))
		}
	}
	return "key " + hex.EncodeToString(wire[:min(len(wire), 64)])
}

// nameLinks gives each name that it is asked for an index, so that a key can be printed that
// names an interface which does not exist here.
type nameLinks struct {
	mu    sync.Mutex
	names []string
}

// maxLinkNames bounds what a nameLinks remembers.
const maxLinkNames = 4096

func (l *nameLinks) Name(index uint32) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if index == 0 || int(index) > len(l.names) {
		return "", false
	}
	return l.names[index-1], true
}

func (l *nameLinks) Index(name string) (uint32, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.names, name); i >= 0 {
		return uint32(i + 1), true
	}
	if len(l.names) == maxLinkNames {
		return 0, false
	}
	l.names = append(l.names, strings.Clone(name))
	return uint32(len(l.names)), true
}
