package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/replicate"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// MapState is the state of a map at this node.
type MapState string

// The states of a map. Except for MapRefused, a map goes through them in this order.
const (
	MapWaiting     MapState = "waiting"     // this host does not have the map yet
	MapLoading     MapState = "loading"     // its entries are being read
	MapSyncing     MapState = "syncing"     // peers are sending their records
	MapReplicating MapState = "replicating" // changes are replicated in both directions
	MapRefused     MapState = "refused"     // the map cannot be replicated; the error has the reason
)

// Poll intervals for maps that appear or disappear. A pin is one file, but a name is looked up
// among all maps, and an inner map in its map of maps. Until a new map is found and refilled, its load balancer has
// no sessions.
const (
	pollPin  = 100 * time.Millisecond
	pollMaps = 500 * time.Millisecond
)

// settleKeys is the maximum number of new keys of a map that are reread until stable. It costs at
// most 6 MiB.
const settleKeys = 1 << 18

// replica is one configured map at this node. Kernel maps are attached to it and detached; its
// table stays.
type replica struct {
	daemon *Daemon
	name   string
	order  int // position in the settings: of two names of one kernel map the first is used
	ref    kmap.Ref
	log    *slog.Logger
	// schemaFile is the file from which the types are read instead of from the kernel, if not
	// empty.
	schemaFile string
	fields     []schema.Setting // settings of the fields of all maps
	end        func()           // stops run and the replication, and waits for both; set by start

	paused    atomic.Pointer[time.Time]           // since when replication is paused; nil: it is not
	described atomic.Pointer[replicate.KernelMap] // the attached kernel map, for peers; nil: none is attached

	mu            sync.Mutex
	state         MapState
	err           error
	refusal       string                  // the last logged error, until it is cleared
	fail          context.CancelCauseFunc // ends follow; nil while follow does not run
	table         *table.Table            // nil until a first map was attached
	schema        *schema.Schema          // schema of the table
	kernel        *attachment             // nil while no map is attached
	since         time.Time               // when the current kernel map was attached
	identitySaved bool                    // the state file contains the current kernel map
	restores      bool                    // the identity was removed until the entries of a clear are restored
	restoreAsked  time.Time               // when it was removed and not written yet, else zero
	unheldSerial  uint64                  // table.Tx.UnheldSerial of the last save; 0 if the state file was read
	syncBarrier   *table.WriteBarrier     // unwritten records at the end of the initial sync of the kernel map
	readyState    readyState              // state of the current kernel map
	readyBarrier  *table.WriteBarrier     // unwritten records when peers had sent all and digests agreed
	returnBarrier *table.WriteBarrier     // unwritten records at the end of a handover

	exempt bool // a reload added it to a ready node, and it was not ready since

	loggedClear table.Clear // the latest clear in the log

	roles fieldRoles // that fields seem to need

	absent bool // the reference means no kernel map, according to the last check

	undetected []string // programs whose writes to the kernel map no hook detects, with type and id
	former     formerMaps

	conversions, unconverted uint64 // number of converted tables, and of entries that did not fit

	firstRead      chan struct{} // closed when the map was read, or does not exist
	closeFirstRead func()        // closes firstRead, once

	// absentSince is since when absent entries wait for the records of peers, zero: none does. watchMaps uses it.
	absentSince time.Time

	// endScanned is when the scan at the end of a handover was complete, zero before. watchMaps uses it.
	endScanned time.Time

	// Fields of run.
	offered       *table.Table   // the table that the replicator has
	offeredSchema *schema.Schema // schema of offered
	// offeredElements is the number of elements of the offered array, and 0 for other maps.
	offeredElements int
	wasOffered      bool        // a table was offered: a key that it lacks does not exist
	loaded          mapIdentity // the last kernel map that was read completely
	stop            *stopFile   // what an earlier incarnation has saved at its stop; nil: not read yet
	attachedAtEnd   bool        // the kernel map of loaded was attached when ctx ended
}

func newReplica(d *Daemon, order int, setting string) (*replica, error) {
	m, err := config.ParseMap(setting)
	if err != nil {
		return nil, err
	}
	ref, err := kmap.ParseRef(m.Ref)
	if err != nil {
		return nil, err
	}
	looked := make(chan struct{})
	return &replica{
		daemon: d, name: m.Name, order: order, ref: ref, state: MapWaiting, log: d.logLimiter.separate().limitLog(d.log.With("map", m.Name)),
		firstRead: looked, closeFirstRead: sync.OnceFunc(func() { close(looked) }),
	}, nil
}

// Pauses between attempts to replicate a refused map.
const (
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// run attaches and detaches kernel maps until ctx ends. After an error of a map, run refuses it
// and tries it again later. Other maps continue.
func (m *replica) run(ctx context.Context) error {
	interval := pollMaps
	if m.ref.PinPath != "" && m.ref.InnerKey == "" { // there may be an inner map for each CPU
		interval = pollPin
	}
	watcher := kmap.NewWatcher(m.ref, interval, m.daemon.pinOwners...)
	defer m.closeFirstRead() // a reload may end the replica before its map is read
	defer m.daemon.assignments.cancelWait(m)
	m.log.Info("waiting for map", "ref", m.ref.String())
	if there, err := kmap.Resolve(m.ref, m.daemon.pinOwners...); err != nil {
		m.setAbsent(errors.Is(err, kmap.ErrNotFound))
		m.closeFirstRead() // Next returns the error
	} else if err := there.Close(); err != nil {
		m.log.Warn("failed to close map", "error", err)
	}
	for pause := minRetry; ctx.Err() == nil; pause = min(2*pause, maxRetry) {
		began := time.Now()
		err := m.follow(ctx, watcher)
		m.saveIdentityWhenApplied() // the next check of watchMaps may be too late
		attached := m.detach(MapWaiting)
		if ctx.Err() != nil {
			m.attachedAtEnd = attached
			break
		}
		m.refuse(err)
		if !errors.Is(err, errDuplicate) {
			m.daemon.assignments.cancelWait(m) // a later name may use the kernel map meanwhile
		}
		if unfit(err) {
			continue // the same kernel map stays unfit: wait for another one
		}
		if time.Since(began) > maxRetry {
			pause = minRetry
		}
		if m.awaitRetry(ctx, watcher, pause) {
			pause = minRetry / 2
		}
	}
	return nil
}

// awaitRetry waits until a refused map is to be tried again: for the duration of pause, or until the
// reference refers to another map or to none. It reports whether the latter was the case.
func (m *replica) awaitRetry(ctx context.Context, watcher *kmap.Watcher, pause time.Duration) (changed bool) {
	defer watcher.Forget()
	ctx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	event, err := watcher.Next(ctx)
	for ; ctx.Err() == nil && err != nil; event, err = watcher.Next(ctx) {
		m.refuse(err)
		m.daemon.assignments.cancelWait(m)
	}
	if event.Map != nil {
		if err := event.Map.Close(); err != nil {
			m.log.Warn("failed to close map", "error", err)
		}
	}
	return err == nil
}

// follow attaches each kernel map to which the reference refers. It returns an error of such a
// map, or of the watcher.
func (m *replica) follow(ctx context.Context, watcher *kmap.Watcher) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	m.setFail(fail)
	defer m.setFail(nil)
	for {
		event, err := watcher.Next(ctx)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if err != nil {
			return err
		}
		m.setAbsent(event.Kind == kmap.Gone)
		if m.detach(MapWaiting) {
			m.log.Info("map disappeared, keeping its table", "event", event.Kind.String(), "id", event.ID)
		}
		if event.Kind == kmap.Gone {
			m.closeFirstRead()
			m.clearRefusal() // the refused map has disappeared
			m.setState(MapWaiting)
			m.daemon.assignments.cancelWait(m)
			continue
		}
		if err := m.attach(ctx, event, fail); err != nil {
			return err
		}
		m.clearRefusal()
	}
}

func (m *replica) setFail(fail context.CancelCauseFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = fail
}

// removeBarrier removes a write barrier, if there is one, and sets it to nil. The lock is held.
func (m *replica) removeBarrier(d **table.WriteBarrier) {
	if *d != nil {
		m.table.Update(func(tx *table.Tx) { tx.RemoveBarrier(*d) })
		*d = nil
	}
}

// barrierPending returns the number of records of a write barrier that are not written. The lock
// is held.
func (m *replica) barrierPending(d *table.WriteBarrier) (n int) {
	m.table.View(func(tx *table.Tx) { n = tx.PendingWrites(d) })
	return n
}

func (m *replica) setState(s MapState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = s
}

// current returns the table of the replica and its schema. Both are nil before the first map was
// attached.
func (m *replica) current() (*table.Table, *schema.Schema) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table, m.schema
}
