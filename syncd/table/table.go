package table

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// DefaultTombstoneTTL is the default of Options.TombstoneTTL.
const DefaultTombstoneTTL = 15 * time.Minute

// DefaultTombstoneGrace is the default of Options.TombstoneGrace. Few records arrive later than that.
const DefaultTombstoneGrace = 5 * time.Second

// DefaultMaxTombstones is the minimum of the default of Options.MaxTombstones.
const DefaultMaxTombstones = 1 << 16

// maxRecords is the number of records that slot numbers can identify besides the two list heads.
const maxRecords = math.MaxInt32 - 2

// ErrOptions is wrapped by the errors of New and Convert.
var ErrOptions = errors.New("invalid table options")

// Options are the settings of a Table. Only SetDigestKey and SetMap change them.
type Options struct {
	// Self is this node and its incarnation. Self.Node must not be empty.
	Self Owner
	// KeySize is the size of a key in bytes, above 0.
	KeySize int
	// ValueSize is the size of a value in bytes, above 0.
	ValueSize int
	// SameMap is true if the local map is the one that an earlier incarnation of this node replicated. The
	// content of the map then takes precedence over records of that incarnation.
	SameMap bool
	// Unheld are the keys whose absence from the local map means nothing, although SameMap is set. See
	// Tx.Unheld.
	Unheld Unheld
	// Stop has the records of the table at the clean stop of the last incarnation. Only the same kernel map has their entries.
	// The zero value: not known.
	Stop Stop
	// AdoptVersion is the version of entries that Adopt makes records of this node, unless Stop has them. It is above the
	// versions that Stop restores: see RestoredVersions. Zero means AdoptedVersion. Then no version counts as restored.
	AdoptVersion Version
	// Stable is a bit mask of a value, ValueSize bytes, without the bits that the kernel owns. Only a change of a bit in
	// the mask is a change since Stop. Nil: all bits.
	Stable []byte
	// TombstoneTTL is the lifetime of a tombstone, from the moment at which this node received the delete.
	// Zero means DefaultTombstoneTTL.
	TombstoneTTL time.Duration
	// TombstoneGrace is the minimum lifetime of a tombstone that every node that may hold a record has
	// acknowledged. Zero means DefaultTombstoneGrace. See SetAcknowledged.
	TombstoneGrace time.Duration
	// MaxTombstones is the highest number of tombstones. Above it the table forgets the oldest ones. Zero
	// means twice MaxEntries, and at least DefaultMaxTombstones.
	MaxTombstones int
	// Seed is the seed of the index hash. Zero selects a random seed. Only tests should set it, because
	// attackers choose the keys of flows.
	Seed uint64
	// MaxRecords is the highest number of records, tombstones included. A full table forgets the oldest
	// tombstones early. Without tombstones it refuses new records and counts them. Zero means no configured
	// limit.
	MaxRecords int
	// Refresh is the age from which on a change without a significant difference is sent. Such a change is
	// a counter, a time stamp, or a data-plane write of the same value. The peers then receive evidence
	// that the key is in use, and this node becomes the owner of the key. Zero: such changes are never
	// sent.
	Refresh time.Duration
	// MaxSkew limits how far a peer's record may move the versions of this node's writes ahead of its
	// clock. Peers refuse records that are ahead of their clocks by more than twice that. A write of the same key always wins over that record. Zero: no limit.
	MaxSkew time.Duration
	// WallOffset is the wall clock minus the time of the table, in nanoseconds: see Tx.FollowClock.
	WallOffset int64
	// SettleKeys is the highest number of new keys that the table rereads until their in-place changes have
	// settled. Each of them costs 24 bytes meanwhile. Zero: none.
	SettleKeys int
	// Significant is a bit mask of a value, ValueSize bytes. Only a change of a bit in the mask is
	// significant. The table stores a change of other bits, but does not send it before a significant
	// change. Nil: all bits.
	Significant []byte
	// Carried is a bit mask of a value, ValueSize bytes, with the bits that are replicated. Nil: all bits.
	Carried []byte
	// DigestKey is the secret of digests, the same on all nodes. A sender with this secret can craft
	// records that hide the loss of others. It may be empty, which is not secret.
	DigestKey []byte
	// ComparedKey is a bit mask of a key, KeySize bytes, with the bits that are equal on all nodes. Keys
	// that differ only in other bits are distinguished by their versions. Nil: all bits.
	ComparedKey []byte
	// Compared is a bit mask of a value, ValueSize bytes, with the bits that are equal on all nodes. It
	// must be a subset of Significant and Carried. Nil: the intersection of the two.
	Compared []byte
	// Variants are the masks of entries whose values have unions. Nil: Significant and Compared are those of all entries.
	Variants *Variants
	// Meanings are those of numbers in entries, which differ between nodes and are not in ComparedKey, Compared and Stable. Nil: none.
	Meanings Meanings
	// MaxEntries is the capacity of the kernel map in entries; 0: unknown.
	MaxEntries int
	// MaxLive is the highest number of live records up to which records of peers enter. Zero: no limit. See
	// record_limit.go.
	MaxLive int
	// LRU is true if the kernel map evicts entries. A key that a reread does not find then counts as evicted, not as
	// deleted. So does a key of this node that is not in the map when syncd starts, unless EvictionDeletes is set.
	LRU bool
	// Room is the number of entries of an LRU map above which the writer treats the map as full. Zero: no limit. See room.go.
	Room int
	// EvictedTTL is the lifetime of a record of this node after the kernel evicted its entry. Zero means
	// DefaultEvictedTTL.
	EvictedTTL time.Duration
	// MaxEvicted is the highest number of evicted records. The oldest expire first. Zero means MaxEntries,
	// or DefaultMaxEvicted if MaxEntries is 0.
	MaxEvicted int
	// EvictionDeletes makes the eviction of a key that this node owns a delete.
	EvictionDeletes bool
	// DeletesAny makes the delete of a peer's record by bpf(2) on this node a delete like one by the data
	// plane: it replicates. So does the absence of the entry that a reread shows.
	DeletesAny bool
	// NewMapWins makes the entries of a new map win over the records of live peers: see LoadNewMap.
	NewMapWins bool
	// HoldClears makes deletes by bpf(2) that would replicate wait until SettleDeletes enters them. See clears.go.
	HoldClears bool
	// ClearUse is the time after a change for which an entry counts as used, for the detection of a clear.
	ClearUse time.Duration
	// TakeoverExpiry is the time after which ExpireTakenOver deletes unused entries without an armed timer.
	// It must exceed the time in which a change in place is found and sent. Zero: never.
	TakeoverExpiry time.Duration
	// TakeoverDelay is added for entries of owners that have left. It is the time in which another node finds its
	// uses of the entry and sends that it has taken the entry over.
	TakeoverDelay time.Duration
	// Timers are the ranges of a value with timers, as the kernel has them: zero until the data plane of this node
	// has set a timer up. Values that are read from the map must have these bytes. Nil: they are not available.
	Timers []Range
	// HasTimer is true if the values have a timer. Its callback deletes entries, and looks like a packet.
	HasTimer bool
	// Counter observes the values of local changes. Nil: nothing does.
	Counter Counter
}

// Table is the replicated content of one kernel map. Its methods may be called from any goroutine. All
// methods except KeySize, ValueSize, TombstoneTTL, Self, DigestID, DigestScope and EqualCompared take a
// lock. The methods that take a lock must not be called from inside Update or View.
type Table struct {
	// mu protects all fields except subMu, subs, the atomic fields of digester, and the fixed fields of
	// opt.
	mu sync.Mutex
	// tx is the only Tx of the table. Update and View pass it to their functions.
	tx Tx
	// opt are the options with their defaults. Only SetDigestKey and SetMap change them after New.
	opt Options
	// max is the highest number of records in slots and in the log, above 0. It never changes.
	max int

	// slab stores the records that are in slots.
	slab
	// index has the slot of each record in a slot, except for an expanded tombstone.
	index index
	// owners has the owner of each OwnerID that a record has.
	owners owners
	// digester has the digest of each node's live, versioned records.
	digester digester

	// seq is the position that was assigned last. It never decreases.
	seq uint64
	// applied is the position up to which the kernel map has the content of the table. It is at most seq
	// and decreases only in Refill.
	applied uint64
	// floor is the highest position of a forgotten tombstone. It is at most seq and never decreases.
	floor uint64
	// notHeld is the number of records with flagNotHeld.
	notHeld int
	// forgottenEarly is the highest version of a tombstone that was forgotten to make room. It never decreases.
	forgottenEarly Version
	// acked is the position up to which all nodes have acknowledged, at most seq. See SetAcknowledged.
	acked uint64
	// admitted is the number of records of peers that enter before the table checks MaxLive again.
	admitted int
	// skew is the lead of the peers' versions over the local clock.
	skew skew
	// clock relates the times of the table to the wall clock.
	clock wallClock
	// cursors has all open cursors, those of groups included. unlink moves them off
	// a record that moves.
	cursors []*Cursor
	// barriers has the write barriers that were not removed.
	barriers []*WriteBarrier
	// recent has the slots of the latest positions, for prefetching.
	recent recentSlots
	// prefetchSink sums up prefetched bytes, so that the compiler does not remove the reads. It has no
	// meaning.
	prefetchSink uint64

	// log has the compact tombstones. No key is both in the log and in the index.
	log tombLog
	// newTombs has every tombstone in a slot of the order without flagInTombs, in the order of their positions. The
	// record of an element may have moved, or the slot may have another record by now. See tombstones_compact.go.
	newTombs fifo[placedSlot]
	// expanded is the compact tombstone that has a slot during the current change.
	expanded expandedTombstone
	// tombs has the tombstones that the compaction has left in their slots. The slot of an element may have
	// another record by now. See inTombs.
	tombs fifo[timedSlot]
	// rereads has the slots with flagInRereads, each once, in the order of the requests.
	rereads fifo[uint32]
	// failures has slots with flagInFailures that wait for RequeueFailed, oldest failure first.
	failures fifo[uint32]
	// retries has slots with flagInFailures that NextDirty returns next. A slot is in failures or in
	// retries, not in both.
	retries fifo[uint32]
	// withVictim has the records that Displace has selected a victim for, oldest first. A record may have
	// changed since. The slots are in failures or in retries, too.
	withVictim fifo[uint32]
	// deferred has the refused records that the writer tries again when it has tried all others, oldest first. A
	// record may have changed since. The slots are in failures or in retries, too.
	deferred fifo[uint32]
	// evicted has the slots with flagInEvicted, each once, about in the order of the evictions.
	evicted fifo[timedSlot]
	// released has the slots with flagInReleased, each once, oldest first.
	released fifo[uint32]
	// unknownRereads has the keys without a record that wait for a reread.
	unknownRereads keyQueue
	// earlyDeletes has the latest deletes of keys without a record.
	earlyDeletes earlyDeletes
	// settling has the new keys that are reread until they are stable.
	settling settling
	// clears has the deletes that wait.
	clears clears
	// scan is the state of the current scan.
	scan scan
	// takeover is the state of ExpireTakenOver.
	takeover takeover
	// refusals has deletes of unverified owners that did not replace a live record.
	refusals refusals
	// readings has the open readings, each once.
	readings []*Reading
	// now is the latest wall clock in nanoseconds that a caller passed to AdvanceClock. It never decreases.
	now int64
	// lastRead is now at the time when the table last entered a value that was read from the map.
	lastRead int64
	// bases has the bases of records by slot. It has no free slot, and is nil without Counter.
	bases map[uint32]*base
	// loading is set between BeginLoad and EndLoad, else nil.
	loading *loading
	// replaced has the content of the local map that records of other nodes have replaced during the initial sync.
	replaced replacedLoads
	// adopted reports that Adopt has ended since the last BeginLoad: the initial sync is over.
	adopted bool
	// foreign has the owners of filtered keys until Adopt has ended.
	foreign foreign
	// undecoded has the filtered keys that this node cannot decode.
	undecoded undecoded
	// stopBuf is scratch space for foundVersion.
	stopBuf []byte
	// copies has the entries of a new map that wait for their reread: see load_new_map.go.
	copies copies
	// room has the numbers of records whose entry the map lacks.
	room mapRoom
	// unheld has the keys of this node's earlier incarnations that the map may never have held.
	unheld unheld
	// deletesHeld is true while Options.DeletesAny has no effect. See HoldDeletes.
	deletesHeld bool
	// unscanned is true from BeginLoad or Refill until the end of the next scan. A read of the map may skip
	// a key, so the map may still have keys that the table lacks.
	unscanned bool
	// stats has the counters and the gauges that are updated with each change. Stats fills in the other
	// fields.
	stats Stats

	// subMu protects subs. It is independent of mu.
	subMu sync.Mutex
	// subs has the number of subscriptions of each channel, above 0.
	subs map[chan<- struct{}]int
}

// Tx is access to a Table under its lock. It is valid only inside the function that Update or View passes
// it to.
type Tx struct {
	// t is the table. It never changes.
	t *Table
	// changed is true if Update must notify the subscribers. Update and View reset it first.
	changed bool
}

// New returns an empty table. It copies the struct of options but keeps its slices. Errors wrap ErrOptions.
func New(o Options) (*Table, error) {
	switch {
	case o.Self.Node == "":
		return nil, fmt.Errorf("create table: node name is empty: %w", ErrOptions)
	case o.KeySize <= 0 || o.ValueSize <= 0:
		return nil, fmt.Errorf("create table: key size %d and value size %d must be above 0: %w", o.KeySize, o.ValueSize, ErrOptions)
	case o.MaxRecords < 0 || o.MaxRecords > maxRecords:
		return nil, fmt.Errorf("create table: record limit %d is out of range: %w", o.MaxRecords, ErrOptions)
	case !o.isMask(o.Significant), !o.isMask(o.Carried), !o.isMask(o.Stable), !o.Variants.fit(&o):
		return nil, fmt.Errorf("create table: significant, carried and stable masks must have the size of a value: %w", ErrOptions)
	case o.EvictedTTL < 0 || o.MaxEvicted < 0 || o.MaxEntries < 0:
		return nil, fmt.Errorf("create table: negative evicted lifetime %s, evicted limit %d or map size %d: %w",
			o.EvictedTTL, o.MaxEvicted, o.MaxEntries, ErrOptions)
	case o.TombstoneGrace < 0 || o.MaxTombstones < 0:
		return nil, fmt.Errorf("create table: negative tombstone grace %s or tombstone limit %d: %w", o.TombstoneGrace, o.MaxTombstones, ErrOptions)
	case slices.ContainsFunc(o.Timers, func(r Range) bool { return r.Offset < 0 || r.Size <= 0 || r.Size > o.ValueSize-r.Offset }):
		return nil, fmt.Errorf("create table: timers %v must be inside a value of %d bytes: %w", o.Timers, o.ValueSize, ErrOptions)
	case o.TombstoneTTL < 0 || o.Refresh < 0 || o.TakeoverExpiry < 0 || o.TakeoverDelay < 0:
		return nil, fmt.Errorf("create table: negative tombstone lifetime %s, refresh interval %s or takeover expiry %s: %w",
			o.TombstoneTTL, o.Refresh, o.TakeoverExpiry, ErrOptions)
	}
	if err := o.checkDigest(); err != nil {
		return nil, err
	}
	o.setDefaults()
	for o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	t := &Table{opt: o, max: o.MaxRecords, subs: make(map[chan<- struct{}]int)}
	if t.max == 0 {
		t.max = maxRecords
	}
	t.tx.t, t.clock.offset = t, o.WallOffset
	t.clears.least = minClear
	t.initSlab(o.KeySize, o.ValueSize, o.MaxEntries)
	t.index.init()
	t.digester.init(&t.opt)
	t.owners.init(o.Self, &t.digester)
	for _, w := range o.Stop.Owners {
		t.owners.stopped[w.Node] = true
	}
	t.log.init(&t.opt)
	t.unheld.load(&t.opt)
	return t, nil
}

// Update calls fn with exclusive access to the table. Afterwards it notifies the subscribers if the order,
// a dirty record, a reread or the applied position has changed.
func (t *Table) Update(fn func(*Tx)) {
	if t.update(fn) {
		t.notify()
	}
}

// update calls fn under the lock and reports whether subscribers must be notified.
func (t *Table) update(fn func(*Tx)) (changed bool) {
	t.mu.Lock()
	// The deferred unlock leaves the table usable for a caller that recovers from a panic in fn.
	defer t.mu.Unlock()
	t.tx.changed = false
	fn(&t.tx)
	return t.tx.changed
}

// View calls fn with exclusive access to the table, for reading. fn may move cursors but must not change
// records. View does not notify subscribers.
func (t *Table) View(fn func(*Tx)) {
	t.update(fn)
}

// Subscribe sends on ch after each Update that changed something. It never blocks. ch should have a
// capacity of 1: one pending notification stands for any number of changes. After cancel has returned, no
// further notification is sent. cancel may be called more than once.
//
// No wake-up is lost if the subscriber subscribes first, then examines the table under its lock, and then
// receives from ch. A change before that examination is visible to it. Update sends after a later change,
// and if ch has no room, the notification in ch is still to be received. View sends nothing, so that fn of
// View must not create work. The syncer, the streams and the Replicator also examine everything at
// least every two seconds, so that a lost wake-up would delay work and not stop it.
func (t *Table) Subscribe(ch chan<- struct{}) (cancel func()) {
	t.subMu.Lock()
	defer t.subMu.Unlock()
	t.subs[ch]++
	return sync.OnceFunc(func() {
		t.subMu.Lock()
		defer t.subMu.Unlock()
		if t.subs[ch]--; t.subs[ch] == 0 {
			delete(t.subs, ch)
		}
	})
}

// notify sends a notification to all subscribers that have room for one.
func (t *Table) notify() {
	t.subMu.Lock()
	defer t.subMu.Unlock()
	for ch := range t.subs {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// AdvanceClock sets the table's wall clock in nanoseconds. The caller calls it before changes that may have
// been delayed. The lifetime of a tombstone starts at this time, not at the time of the change. An earlier
// time has no effect.
func (tx *Tx) AdvanceClock(now int64) { tx.t.now = max(tx.t.now, now) }
