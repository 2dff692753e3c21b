package replicate

import (
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"mapsync/printable"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/table"
)

const (
	// maxExceptions bounds the stored entries that a map cannot hold or send. Digests do not agree
	// if there are more.
	maxExceptions = 4096
	// maxExceptionKey and maxReason bound the stored key and reason of an entry, in bytes.
	maxExceptionKey = 1024
	maxReason       = 256
	// maxListedExceptions bounds the entries in a status, and the stored entries that the limit of
	// the table has rejected.
	maxListedExceptions = 64
	// exceptionLogInterval is the minimum time between two log lines about the exceptions of one map.
	exceptionLogInterval = time.Minute
)

// Exception is an entry that one node has and another cannot hold.
type Exception struct {
	// Key is the key as text.
	Key string
	// Reason is why the entry cannot be sent or held.
	Reason string
}

// exceptions are the entries that one map cannot hold of one sender, or that one map cannot send.
// All writers run in one goroutine or hold the table's lock, so they read without mu.
//
// Digests leave out the entries that cannot be sent, and comparisons of different layouts those
// that cannot be held. An exception therefore does not hide other differences. That works for at
// most maxExceptions of them.
type exceptions struct {
	// mu guards the fields below against concurrent readers. Writers hold it while they write.
	mu sync.Mutex
	// byKey has at most maxExceptions entries, plus at most maxListedExceptions that the limit of
	// the table has rejected. nil: none so far.
	byKey map[string]*exception
	// overflow is the number of entries that found no room since the last full sync began.
	overflow int
	// aboveLimit is the number of records that the limit of the table has rejected since the last
	// full sync began, or that the last comparison counted. aboveLimitKeys is the number of entries
	// in byKey with aboveLimit set.
	aboveLimit, aboveLimitKeys int
	// syncNumber numbers the full syncs.
	syncNumber int
	// syncComplete reports that the full sync syncNumber has ended. inboundStream.mu guards it, too.
	syncComplete bool

	// unloggedKey is the key of the first entry since the last log line; nil: none.
	unloggedKey []byte
	// unloggedReason is the reason of that entry.
	unloggedReason error
	// loggedAt is the time of the last log line.
	loggedAt time.Time
}

// exception is one entry. Its key is that of the sender: the encoded key if the entry cannot be
// held, the key in the kernel map if it cannot be sent.
type exception struct {
	// version is that of the last record of the key that this node could not hold or send.
	version table.Version
	// owner is that of the record. It is a name and not an id, because the table may reuse ids.
	owner table.Owner
	// reason is UTF-8, at most maxReason bytes.
	reason string
	// syncNumber is the number of the last full sync that contained the entry.
	syncNumber int
	// aboveLimit reports that the limit of the table has rejected the record.
	aboveLimit bool
}

// add stores an entry. If maxExceptions entries are stored already, it only counts the entry. The
// key is copied. A newer record of a key replaces the older exception. The caller holds the table's
// lock.
func (e *exceptions) add(key []byte, version table.Version, owner table.Owner, why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.byKey[string(key)]
	if x == nil {
		// Entries above the limit of the table have a bound of their own.
		if len(e.byKey)-e.aboveLimitKeys >= maxExceptions || len(key) > maxExceptionKey {
			e.overflow++
			return
		}
		x = e.insert(key)
		if e.unloggedKey == nil {
			e.unloggedKey, e.unloggedReason = slices.Clone(key), why
		}
	}
	// syncNumber keeps the entry when the full sync ends.
	x.version, x.owner, x.syncNumber, x.reason = version, owner, e.syncNumber, reasonOf(why)
}

// insert adds an entry. The caller holds mu. The key is copied.
func (e *exceptions) insert(key []byte) *exception {
	if e.byKey == nil {
		e.byKey = make(map[string]*exception)
	}
	x := &exception{}
	e.byKey[string(key)] = x
	return x
}

// reasonOf returns the text of an error, truncated to maxReason bytes. A rune that is cut at the
// end is removed.
func reasonOf(err error) string {
	return strings.ToValidUTF8(err.Error()[:min(len(err.Error()), maxReason)], "")
}

// resolve removes an entry that is now held, or that no longer exists. It reports whether aboveLimit counts the entry. The caller
// holds the table's lock.
func (e *exceptions) resolve(key []byte) (counted bool) {
	if len(e.byKey) == 0 {
		return false
	}
	// The lock is taken only if the entry exists: this runs for every delta.
	if x, ok := e.byKey[string(key)]; ok {
		counted = x.aboveLimit && x.syncNumber == e.syncNumber
		e.mu.Lock()
		e.remove(string(key))
		e.mu.Unlock()
	}
	return counted
}

// beginSync starts a full sync. endSync removes the entries that the full sync does not contain.
// Entries that are only counted are counted again. The caller holds inboundStream.mu.
func (e *exceptions) beginSync() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.syncNumber++
	e.overflow, e.aboveLimit, e.syncComplete = 0, 0, false
}

// endSync ends a full sync. Later calls do nothing until the next beginSync: after a full sync, an
// entry leaves only by resolve. The caller holds inboundStream.mu.
func (e *exceptions) endSync() {
	if e.syncComplete {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.syncComplete = true
	for key, x := range e.byKey {
		// The full sync did not contain the entry, so the peer no longer has it.
		if x.syncNumber != e.syncNumber {
			e.remove(key)
		}
	}
}

// count returns the number of entries, including those that are only counted. Any goroutine may
// call it.
func (e *exceptions) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.byKey) - e.aboveLimitKeys + e.overflow + max(e.aboveLimitKeys, e.aboveLimit)
}

// each calls fn with up to limit entries, ordered by key. fn must not call methods of e. Any
// goroutine may call it.
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

// list returns up to maxListedExceptions entries, with keys as text.
func (e *exceptions) list(text func(key []byte) string) (list []Exception) {
	e.each(maxListedExceptions, func(key, reason string) {
		list = append(list, Exception{Key: text([]byte(key)), Reason: printable.Text(reason)})
	})
	return list
}

// Unsent returns the number of records of a map that cannot be sent to any peer because their keys
// cannot be encoded, and up to 64 of them. A failover loses these records. The result is empty for
// an unknown map.
func (r *Replicator) Unsent(name string) (count int, list []Exception) {
	m := r.localMaps()[name]
	if m == nil {
		return 0, nil
	}
	return m.unsent.count(), m.unsent.list(m.keyText)
}

// KeyException is an entry that this node cannot send, or that it cannot hold.
type KeyException struct {
	// Peer is the node that has sent the entry; empty: this node cannot send it.
	Peer string
	Exception
}

// ExceptionsOf returns the exceptions of some keys, as text, of a map. Each stored exception is compared.
func (r *Replicator) ExceptionsOf(name string, keys map[string]bool) (list []KeyException) {
	m := r.localMaps()[name]
	if m == nil {
		return nil
	}
	collect := func(peer string, e *exceptions, text func(key []byte) string) {
		e.each(math.MaxInt, func(key, reason string) {
			if key := text([]byte(key)); keys[key] {
				list = append(list, KeyException{peer, Exception{Key: key, Reason: printable.Text(reason)}})
			}
		})
	}
	collect("", &m.unsent, m.keyText)
	r.mu.Lock()
	streams := slices.Collect(maps.Values(r.inboundStreams))
	r.mu.Unlock()
	for _, s := range streams {
		s.mu.Lock()
		if in := s.maps[name]; in != nil && in.m == m {
			collect(s.peer.Node, &in.exceptions, in.printer.key)
		}
		s.mu.Unlock()
	}
	return list
}

// log calls fn with the number of entries and the key and reason of one new entry. It does nothing
// without a new entry, or within exceptionLogInterval after the last call of fn. fn runs without a
// lock.
func (e *exceptions) log(now time.Time, fn func(count int, key []byte, why error)) {
	e.mu.Lock()
	key, why, count := e.unloggedKey, e.unloggedReason, len(e.byKey)+e.overflow
	// The first entry since the last log line is logged once the interval is over.
	if key == nil || now.Sub(e.loggedAt) < exceptionLogInterval {
		e.mu.Unlock()
		return
	}
	e.unloggedKey, e.loggedAt = nil, now
	e.mu.Unlock()
	fn(count, key, why)
}

// exceptionsVersionSum returns the difference that the exceptions make to the version sum of some
// nodes' records: what they add at the peer, minus what older records of the same keys add here.
// The caller holds the table's lock. Only comparisons of different layouts use it.
func (in *inboundMap) exceptionsVersionSum(tx *table.Tx, of func(node string) bool) (sum uint64) {
	if len(in.exceptions.byKey) == 0 {
		return 0
	}
	key := make([]byte, in.m.layout.KeySize)
	for encoded, x := range in.exceptions.byKey {
		// The peer's digest contains the record.
		if of(x.owner.Node) {
			sum += tx.VersionSumOf(x.owner, x.version)
		}
		// The key cannot exist in this node's map.
		if in.decoder.Key(key, []byte(encoded)) != nil {
			continue
		}
		if owner, digest, _, ok := tx.DigestOf(key); ok && of(owner) {
			sum -= digest.VersionSum
		}
	}
	return sum
}

// logExceptions logs the entries of the peer that this node cannot hold, at most once in
// exceptionLogInterval. The receiving goroutine calls it without a lock.
func (in *inboundMap) logExceptions(now time.Time) {
	in.exceptions.log(now, func(count int, key []byte, why error) {
		in.stream.r.opt.Logger.Warn("cannot store entries of peer, a failover to this node loses them",
			slog.String("peer", in.stream.peer.Node), slog.String("map", in.m.name), slog.Int("entries", count),
			slog.String("first", in.printer.key(key)), slog.String("reason", reasonOf(why)), slog.String("hint", hintFor(why, in.m.name)))
	})
}

// logUnsent logs the records that cannot be sent, at most once in exceptionLogInterval.
func (m *localMap) logUnsent(now time.Time, log *slog.Logger) {
	m.unsent.log(now, func(count int, key []byte, why error) {
		log.Warn("cannot send entries to peers, a failover loses them", slog.String("map", m.name),
			slog.Int("entries", count), slog.String("first", m.keyText(key)),
			slog.String("reason", reasonOf(why)), slog.String("hint", hintFor(why, m.name)))
	})
}

// unsentDigests is what each record that cannot be sent adds to the digests.
type unsentDigests []struct {
	node   string // name of the owner
	digest table.Digest
	bucket int
}

// unsentDigests returns what to subtract from digests, and the number of records that cannot be
// sent. The caller holds the table's lock. It also removes the entries that have become sendable,
// or that the table no longer has.
func (m *localMap) unsentDigests(tx *table.Tx) (out unsentDigests, count int) {
	for key := range m.unsent.byKey {
		k := []byte(key)
		node, g, bucket, ok := tx.DigestOf(k)
		if !ok || !m.unencodable(tx, k) {
			// Peers that compare the record detect the difference, and all others receive it again.
			if m.unsent.resolve(k); ok {
				m.sendable = append(m.sendable, k)
			}
			continue
		}
		out = append(out, struct {
			node   string
			digest table.Digest
			bucket int
		}{node, g, bucket})
	}
	return out, len(out) + m.unsent.overflow
}

// resolveUnsentDeletes removes the deletes that have become sendable, or that the table no longer has. The caller holds the table's
// lock.
func (m *localMap) resolveUnsentDeletes(tx *table.Tx) {
	var rec table.Record
	for key := range m.unsentDeletes.byKey {
		k := []byte(key)
		if !tx.Get(k, &rec) || !rec.Delete {
			m.unsentDeletes.resolve(k)
		} else if !m.unencodable(tx, k) {
			m.unsentDeletes.resolve(k)
			tx.Resend(k)
		}
	}
}

// stored reports whether there is an entry besides those that are only counted. Any goroutine may call it.
func (e *exceptions) stored() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.byKey) > 0
}

// unencodable reports whether the record of a key cannot be sent. The caller holds the table's lock.
func (m *localMap) unencodable(tx *table.Tx, key []byte) bool {
	var rec table.Record
	if _, err := m.schemaEncoder.AppendKey(nil, key); err != nil || !tx.Get(key, &rec) || rec.Delete {
		return err != nil
	}
	_, err := m.schemaEncoder.AppendNamedValue(nil, key, rec.Value, nil)
	return err != nil
}

// subtractFrom subtracts the records of some owners from a digest, and from its buckets unless
// they are nil.
func (l unsentDigests) subtractFrom(of func(node string) bool, g *table.Digest, buckets *table.Buckets) {
	for i := range l {
		r := &l[i]
		if !of(r.node) {
			continue
		}
		// Sums are modulo 2^64, so records can be subtracted in any order.
		g.Sum, g.VersionSum, g.Live = g.Sum-r.digest.Sum, g.VersionSum-r.digest.VersionSum, g.Live-1
		if buckets != nil {
			buckets[r.bucket] -= r.digest.Sum
		}
	}
}

// keyText returns a key of the kernel map as text. It compiles a printer for each call, so it
// serves only the log and the status.
func (m *localMap) keyText(key []byte) string {
	return string(export.NewPrinter(m.layout.Schema, m.layout.Links).AppendKey(nil, key))
}
