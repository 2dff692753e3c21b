package table

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// DefaultTombstoneTTL is how long a tombstone is kept when Options do not say.
const DefaultTombstoneTTL = 15 * time.Minute

// DefaultTombstoneGrace is how long an acknowledged tombstone is kept when Options do not say. A
// stream without a message ends in that time, and with it what was on its way.
const DefaultTombstoneGrace = 5 * time.Second

// DefaultMaxTombstones is the least bound of tombstones when Options do not say.
const DefaultMaxTombstones = 1 << 16

// maxRecords is what slot numbers can name, with room for the two sentinels.
const maxRecords = math.MaxInt32 - 2

// ErrOptions is wrapped by the errors of New.
var ErrOptions = errors.New("invalid table options")

// Options configure a Table.
type Options struct {
	// Self is this node and its incarnation.
	Self Owner
	// KeySize is the size of a key in bytes, more than 0.
	KeySize int
	// ValueSize is the size of a value in bytes, more than 0.
	ValueSize int
	// SameMap says that the local map is the one that an earlier incarnation of
	// this node watched. It is then right about what that incarnation owned.
	SameMap bool
	// TombstoneTTL is how long a deleted key is remembered, from the moment at
	// which this node learnt of it. Zero means DefaultTombstoneTTL.
	TombstoneTTL time.Duration
	// TombstoneGrace is how long a tombstone is kept although every node that may hold a record has
	// acknowledged it: longer than a record of another node may be on its way here. Zero means
	// DefaultTombstoneGrace. See SetAcknowledged.
	TombstoneGrace time.Duration
	// MaxTombstones is the highest number of tombstones. Above it the oldest are forgotten. Zero
	// means twice MaxEntries, and at least DefaultMaxTombstones.
	MaxTombstones int
	// Seed keys the hash of the index. Zero picks a random one, which is what
	// anything but a test wants: flow keys are chosen by attackers.
	Seed uint64
	// MaxRecords is how many records, tombstones included, the table holds. When
	// it is full, the oldest tombstones go before their time; when there are
	// none, what is new is refused and counted. Zero means no limit of its own.
	MaxRecords int
	// Refresh is how old a record must be for a touch that changes nothing
	// significant (a counter, a time stamp, or a data-plane write of the same) to count
	// as a change: it tells the peers that the key lives, and makes a key that another
	// owns this node's. Zero: it never does.
	Refresh time.Duration
	// MaxSkew is how far a peer's record may move the versions of this node's writes
	// ahead of its clock. A write of the same key always wins over it. Zero: no limit.
	MaxSkew time.Duration
	// SettleKeys is how many new keys are read again at a time until their
	// in-place changes have settled; 0 follows none. Each takes 24 bytes meanwhile.
	SettleKeys int
	// Significant has a bit for each of a value's whose change is a difference by
	// itself, ValueSize bytes; nil: all are. A change of the others alone is kept,
	// but nobody is told before the rest changes too.
	Significant []byte
	// Carried has a bit for each of a value's that is replicated, ValueSize bytes;
	// nil: all are.
	Carried []byte
	// DigestKey is the secret of digests, the same on all nodes: whoever knows it can
	// make records that hide others' loss. It may be empty, which is a known one.
	DigestKey []byte
	// ComparedKey has a bit for each of a key's that all nodes hold alike, KeySize
	// bytes; nil: all are. Keys that differ in the others alone are told apart by
	// their versions.
	ComparedKey []byte
	// Compared is the same for values, ValueSize bytes, a part of what is significant
	// and carried; nil: all of that.
	Compared []byte
	// MaxEntries is how many entries the kernel map holds; 0: unknown.
	MaxEntries int
	// MaxLive is the highest number of live records of which peers add more; 0: no limit. See
	// limit.go.
	MaxLive int
	// LRU says that the kernel map evicts entries: a key of this node's that is not in it when
	// syncd starts counts as evicted, not as deleted, unless EvictionDeletes is set.
	LRU bool
	// EvictedTTL is how long a record of this node's stays after the kernel evicted its entry.
	// Zero means DefaultEvictedTTL.
	EvictedTTL time.Duration
	// MaxEvicted is the highest number of such records. The oldest expire first. Zero means
	// MaxEntries, or DefaultMaxEvicted if that is unknown.
	MaxEvicted int
	// EvictionDeletes makes the eviction of a key that this node owns a delete.
	EvictionDeletes bool
	// EvictionsUnseen says that no hook tells what the kernel evicts: another node's entry
	// that is not in the map may be one of those, and is not put back.
	EvictionsUnseen bool
}

// setDefaults replaces zeros that stand for a default.
func (o *Options) setDefaults() {
	if o.TombstoneTTL == 0 {
		o.TombstoneTTL = DefaultTombstoneTTL
	}
	if o.TombstoneGrace == 0 {
		o.TombstoneGrace = DefaultTombstoneGrace
	}
	if o.MaxTombstones == 0 {
		o.MaxTombstones = max(2*o.MaxEntries, DefaultMaxTombstones)
	}
	if o.EvictedTTL == 0 {
		o.EvictedTTL = DefaultEvictedTTL
	}
	if o.MaxEvicted == 0 {
		o.MaxEvicted = o.MaxEntries
	}
	if o.MaxEvicted == 0 {
		o.MaxEvicted = DefaultMaxEvicted
	}
}

// Table is the replicated content of one map. Its methods may be called from
// any goroutine; those that take the lock (all but KeySize, ValueSize, TombstoneTTL and Self)
// must not be called from inside Update or View.
type Table struct {
	mu  sync.Mutex
	tx  Tx
	opt Options
	max int

	slab
	index    index
	owners   owners
	digester digester

	seq     uint64 // position given out last
	applied uint64
	floor   uint64
	acked   uint64 // see SetAcknowledged
	// admitted is how many records of peers enter before MaxLive is looked at again.
	admitted int
	skew     skew
	cursors  []*Cursor
	debts    []*Debt
	trail    trail
	warmth   uint64 // what was read ahead, for nobody

	log      tombLog
	hand     *Cursor // see compact.go
	thawed   thawed
	tombs    fifo[tomb] // tombstones in slots that the hand has passed
	rechecks fifo[uint32]
	failures fifo[uint32]
	retries  fifo[uint32] // of these, to be written again. flagInFailures: in one of the two
	evicted  fifo[tomb]
	released fifo[uint32]
	rereads  rereads
	strays   strays
	settling settling
	scan     scan
	readings []*Reading // open
	now      int64      // the latest time that it was told
	loading  *loading   // nil but during a load
	// unsure: the map was read once, and a read may pass over a key. It was not scanned since.
	unsure bool
	stats  Stats

	subMu sync.Mutex
	subs  map[chan<- struct{}]int
}

// Tx is access to a Table under its lock. It is valid only inside the function
// that Update or View called with it.
type Tx struct {
	t       *Table
	changed bool
}

// New returns an empty table. Its errors wrap ErrOptions.
func New(o Options) (*Table, error) {
	switch {
	case o.Self.Node == "":
		return nil, fmt.Errorf("create table without a node name: %w", ErrOptions)
	case o.KeySize <= 0 || o.ValueSize <= 0:
		return nil, fmt.Errorf("create table with key size %d and value size %d: %w", o.KeySize, o.ValueSize, ErrOptions)
	case o.MaxRecords < 0 || o.MaxRecords > maxRecords:
		return nil, fmt.Errorf("create table with at most %d records: %w", o.MaxRecords, ErrOptions)
	case o.Significant != nil && len(o.Significant) != o.ValueSize, o.Carried != nil && len(o.Carried) != o.ValueSize:
		return nil, fmt.Errorf("create table with masks that are not as long as a value: %w", ErrOptions)
	case o.EvictedTTL < 0 || o.MaxEvicted < 0 || o.MaxEntries < 0:
		return nil, fmt.Errorf("create table with evicted records for %s, at most %d of a map of %d: %w",
			o.EvictedTTL, o.MaxEvicted, o.MaxEntries, ErrOptions)
	case o.TombstoneGrace < 0 || o.MaxTombstones < 0:
		return nil, fmt.Errorf("create table with tombstone grace %s and %d tombstones: %w", o.TombstoneGrace, o.MaxTombstones, ErrOptions)
	case o.TombstoneTTL < 0 || o.Refresh < 0:
		return nil, fmt.Errorf("create table with tombstone lifetime %s and refresh interval %s: %w", o.TombstoneTTL, o.Refresh, ErrOptions)
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
	t.tx.t = t
	t.initSlab(o.KeySize, o.ValueSize)
	t.index.init()
	t.digester.init(&t.opt)
	t.owners.init(o.Self, &t.digester)
	t.log.init(&t.opt)
	t.hand = t.NewCursor(0)
	return t, nil
}

// Update calls fn with exclusive access to the table. Afterwards it wakes the
// subscribers if the order, a dirty record, a recheck or the applied position
// moved.
func (t *Table) Update(fn func(*Tx)) {
	if t.update(fn) {
		t.notify()
	}
}

func (t *Table) update(fn func(*Tx)) (changed bool) {
	t.mu.Lock()
	// Deferred, so that a panic in fn does not leave the table locked for
	// whoever recovers from it.
	defer t.mu.Unlock()
	t.tx.changed = false
	fn(&t.tx)
	return t.tx.changed
}

// View calls fn with exclusive access to the table, for reading: moving a
// cursor is reading, changing a record is not. It wakes nobody.
func (t *Table) View(fn func(*Tx)) {
	t.update(fn)
}

// Subscribe sends on ch, without ever blocking, after each Update that moved
// something. Give it a channel with a capacity of 1: one pending wake-up stands
// for all. After cancel has returned nothing is sent any more; it may be called
// more than once.
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

// Now sets the table's wall clock, in nanoseconds. Call it before changes that may have
// waited on their way: what is deleted is remembered from then on, not from the time
// of the change.
func (tx *Tx) Now(now int64) { tx.t.now = max(tx.t.now, now) }

// KeySize returns the size of a key in bytes.
func (t *Table) KeySize() int { return t.opt.KeySize }

// ValueSize returns the size of a value in bytes.
func (t *Table) ValueSize() int { return t.opt.ValueSize }

// TombstoneTTL returns how long a tombstone is kept that not every node has acknowledged.
func (t *Table) TombstoneTTL() time.Duration { return t.opt.TombstoneTTL }

// Self returns the owner that local changes are recorded under.
func (t *Table) Self() Owner { return t.opt.Self }
