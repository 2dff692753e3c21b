package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// MapState is how far a map has come at this node.
type MapState string

// The states of a map, in the order in which it goes through them.
const (
	MapWaiting     MapState = "waiting"     // there is no such map on this host yet
	MapLoading     MapState = "loading"     // its first content is being read
	MapSyncing     MapState = "syncing"     // peers are telling what they know
	MapReplicating MapState = "replicating" // changes go both ways
	MapRefused     MapState = "refused"     // it cannot be replicated; the error says why
)

// How often the kernel is asked whether a map has come or gone: a pin is one file, a
// name is looked for among all maps. Until a new map is found and refilled, its load balancer
// knows no session.
const (
	pollPin  = 100 * time.Millisecond
	pollMaps = 500 * time.Millisecond
)

// settleKeys is how many new keys of a map are followed at a time: 6 MiB at most.
const settleKeys = 1 << 18

// replica is one configured map at this node. Kernel maps come and go under it;
// its table stays.
type replica struct {
	daemon *Daemon
	name   string
	order  int // its place in the settings: of two names of one kernel map the first is used
	ref    kmap.Ref
	log    *slog.Logger
	// schemaFile is where the types are read from instead of the kernel, if set.
	schemaFile string
	fields     []schema.Setting // of all maps
	end        func()           // stops run, and the replication; set by start

	room atomic.Int64 // entries that the kernel map has room for; 0: there is none

	mu         sync.Mutex
	state      MapState
	err        error
	refusal    string                  // the latest error that was logged and did not end since
	fail       context.CancelCauseFunc // ends follow; nil while it does not run
	table      *table.Table            // nil until a first map gave the sizes
	schema     *schema.Schema          // of the table
	kernel     *attachment             // nil while there is no map
	since      time.Time               // when the current kernel map was attached
	remembered bool                    // the state file names the current kernel map
	heard      *table.Debt             // of what peers had told to the current map when they had told all
	verdict    verdict                 // of the current kernel map
	goal       *table.Debt             // of what was known when peers had told all and agreed

	late bool // a reload added it to a ready node, and it was not ready since

	conversions, unconverted uint64 // tables, and entries that did not fit

	looked chan struct{} // closed when it is known whether the map is there, and it was read
	look   func()        // closes it

	// Of run.
	offered *table.Table // what the replicator has
	known   bool         // the table was offered: what it does not hold is not there
	loaded  mapIdentity  // the kernel map that was read last, if wholly
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
		daemon: d, name: m.Name, order: order, ref: ref, state: MapWaiting, log: d.log.With("map", m.Name),
		looked: looked, look: sync.OnceFunc(func() { close(looked) }),
	}, nil
}

// Pauses between tries of a map that could not be replicated.
const (
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// run follows the kernel map until ctx ends. What is wrong with a map sets that
// map aside, to be tried again, and ends nothing else.
func (m *replica) run(ctx context.Context) error {
	interval := pollMaps
	if m.ref.PinPath != "" {
		interval = pollPin
	}
	watcher := kmap.NewWatcher(m.ref, interval, m.daemon.pinOwners...)
	defer m.look() // a reload may end the replica before its map is read
	defer m.daemon.claims.withdraw(m)
	m.log.Info("waiting for the map", "ref", m.ref.String())
	if there, err := kmap.Resolve(m.ref, m.daemon.pinOwners...); err != nil {
		m.look() // what is wrong, Next tells
	} else if err := there.Close(); err != nil {
		m.log.Warn("the map was not closed after a first look", "error", err)
	}
	for pause := minRetry; ctx.Err() == nil; pause = min(2*pause, maxRetry) {
		began := time.Now()
		err := m.follow(ctx, watcher)
		m.rememberWhenApplied() // the next tick may come too late
		m.detach(MapWaiting)
		if ctx.Err() != nil {
			break
		}
		m.refuse(err)
		if unfit(err) {
			continue // the same kernel map stays unfit: wait for another one
		}
		if time.Since(began) > maxRetry {
			pause = minRetry
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		watcher.Forget()
	}
	return nil
}

// unfit reports whether a kernel map cannot be replicated whatever else changes.
func unfit(err error) bool {
	return errors.Is(err, kmap.ErrUnsupported) || errors.Is(err, capture.ErrEntryTooLarge)
}

// follow attaches each kernel map that the reference comes to mean. It returns
// what went wrong with one, or with looking for it.
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
		if m.detach(MapWaiting) {
			m.log.Info("the map has gone, its table stays", "event", event.Kind.String(), "id", event.ID)
		}
		if event.Kind == kmap.Gone {
			m.look()
			m.accepted() // the map that was refused has gone
			m.setState(MapWaiting)
			m.daemon.claims.withdraw(m)
			continue
		}
		if err := m.attach(ctx, event, fail); err != nil {
			return err
		}
		m.accepted()
	}
}

func (m *replica) setFail(fail context.CancelCauseFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = fail
}

// accepted ends a refusal: the next error is logged again.
func (m *replica) accepted() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err, m.refusal = nil, ""
}

// refuse sets the map aside.
func (m *replica) refuse(err error) {
	m.look()
	m.mu.Lock()
	defer m.mu.Unlock()
	if text := err.Error(); m.refusal != text {
		m.refusal = text
		m.log.Error("the map cannot be replicated", "error", err, "retried", !unfit(err))
	}
	m.state, m.err = MapRefused, err
}

// forgive gives a debt up that the kernel map is not to pay any more. The lock is held.
func (m *replica) forgive(d **table.Debt) {
	if *d != nil {
		m.table.Update(func(tx *table.Tx) { tx.Forgive(*d) })
		*d = nil
	}
}

// owes returns how many records of a debt are still to be written. The lock is held.
func (m *replica) owes(d *table.Debt) (n int) {
	m.table.View(func(tx *table.Tx) { n = tx.Owes(d) })
	return n
}

func (m *replica) setState(s MapState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = s
}

// current returns the replica's table and what its bytes mean, nil before there
// was a map.
func (m *replica) current() (*table.Table, *schema.Schema) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table, m.schema
}
