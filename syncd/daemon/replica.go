package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/replicate"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
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

// attachment is one kernel map under a replica.
type attachment struct {
	m      *kmap.Map
	syncer *kmap.Syncer
	stop   context.CancelFunc
	done   chan struct{}

	scanner   *kmap.Scanner
	began     int64 // when it was taken, before its content was read; ns of the daemon's clock
	requested int64 // the latest loss for which a scan was asked for
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
			m.accepted() // the map that was refused has gone
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

// attach puts a kernel map under the replica: hooks first, then its content, so
// that no change falls between the two. fail is called when the map stops working later.
func (m *replica) attach(ctx context.Context, event kmap.Event, fail context.CancelCauseFunc) error {
	opened, s, err := m.open(event.Map)
	if err != nil {
		return err
	}
	if err := m.daemon.claims.take(event.ID, m); err != nil {
		return errors.Join(err, opened.Close())
	}
	a := &attachment{m: opened, stop: func() {}, began: m.daemon.clock.now()}
	t, err := m.tableFor(opened.Info(), s)
	if err != nil {
		m.daemon.claims.release(event.ID, m)
		return errors.Join(err, opened.Close())
	}
	m.begin(a, t, s)
	watch := m.daemon.capture.Watch
	if opened.Info().CPUs > 0 {
		watch = m.daemon.capture.WatchKeys // an event has the value of one CPU only
	}
	if err := watch(event.ID, t); err != nil {
		return err
	}
	began := time.Now()
	n, err := m.load(ctx, opened, t)
	if err != nil {
		return err
	}
	m.log.Info("the map is attached", "id", event.ID, "entries", n, "load_seconds", time.Since(began).Seconds(),
		"read", opened.Method().Read, "write", opened.Method().Write)
	if err := m.replicate(t, s, opened.Info()); err != nil {
		return err
	}
	return m.startSyncer(ctx, a, t, fail)
}

// open reads the map's types and gets it ready. It closes raw.
func (m *replica) open(raw *ebpf.Map) (*kmap.Map, *schema.Schema, error) {
	defer raw.Close()
	info, err := kmap.Describe(raw)
	if err != nil {
		return nil, nil, err
	}
	if info.Supported != nil {
		return nil, nil, info.Supported
	}
	s, err := m.schemaFor(info)
	if err != nil {
		return nil, nil, err
	}
	opened, err := kmap.Open(raw, kmap.Options{OwnWriter: m.daemon.ownWriter, Keep: keptRanges(s), Logger: m.log})
	return opened, s, err
}

// tableFor returns the replica's table: made to measure for the first map, and for one
// of another layout converted. Until a map was offered to peers its table is no more
// than what that map held.
func (m *replica) tableFor(info kmap.Info, s *schema.Schema) (*table.Table, error) {
	t, old := m.current()
	if m.known && schema.Equal(old, s) {
		return t, nil
	}
	o := table.Options{
		Self: m.daemon.self, KeySize: info.KeySize, ValueSize: info.ValueSize,
		SameMap:         m.daemon.state.same(m.name, identityOf(&info)),
		TombstoneTTL:    m.daemon.config.TombstoneTTL,
		MaxSkew:         m.daemon.config.MaxClockAhead / 2, // so that peers accept this node's records
		EvictionDeletes: m.daemon.config.EvictionDeletes,
		EvictionsUnseen: m.daemon.evictionsUnseen(&info),
		LRU:             isLRU(&info),
		MaxEntries:      info.MaxEntries,
		EvictedTTL:      m.daemon.config.EvictedTTL,
		MaxEvicted:      m.daemon.config.MaxEvicted,
		MaxLive:         m.daemon.maxLive(&info),
		MaxTombstones:   m.daemon.config.MaxTombstones,
		SettleKeys:      settleKeys,
		Refresh:         m.daemon.config.RefreshInterval,
		Significant:     s.Significant(),
		Carried:         s.Carried(),
		DigestKey:       m.daemon.digestKey(m.name),
		ComparedKey:     s.ComparedKey(),
		Compared:        s.Compared(),
	}
	if m.known {
		return m.convert(t, old, s, o)
	}
	return table.New(o)
}

func (m *replica) begin(a *attachment, t *table.Table, s *schema.Schema) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel, m.table, m.schema, m.state, m.err, m.since = a, t, s, MapLoading, nil, time.Now()
	info := a.m.Info()
	m.room.Store(int64(info.MaxEntries))
	m.remembered = m.daemon.state.same(m.name, identityOf(&info))
	t.Update(func(tx *table.Tx) { tx.SetDigestKey(m.daemon.digestKey(m.name)) }) // a reload may have been faster
	m.verdict = notReady
	m.daemon.poke()
}

// replicate offers the map to peers. Only then may it be claimed: until the
// replicator knows of it, nobody is waited for. A table that was converted takes the
// old one's place, as another life of the map: streams begin anew.
func (m *replica) replicate(t *table.Table, s *schema.Schema, info kmap.Info) error {
	if m.offered != t {
		if m.offered != nil {
			m.daemon.replicator.RemoveMap(m.name)
			m.offered = nil
		}
		err := m.daemon.replicator.AddMap(m.name, replicate.Layout{
			KeySize: info.KeySize, ValueSize: info.ValueSize, LRU: isLRU(&info),
			Schema: s, Links: m.daemon.links, Room: func() int { return int(m.room.Load()) },
			Access: m.daemon.access(m.name),
		}, t)
		if err != nil {
			return err
		}
		m.offered, m.known = t, true
	}
	m.setState(MapSyncing)
	m.look()
	return nil
}

func (m *replica) startSyncer(ctx context.Context, a *attachment, t *table.Table, fail context.CancelCauseFunc) error {
	syncer, err := kmap.NewSyncer(t, a.m, kmap.SyncerOptions{Now: m.daemon.clock.now, Logger: m.log})
	if err != nil {
		return err
	}
	scanner, err := m.newScanner(a, t)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	m.mu.Lock()
	a.syncer, a.scanner, a.stop, a.done = syncer, scanner, cancel, done
	m.mu.Unlock()
	var running sync.WaitGroup
	running.Go(func() { scanner.Run(ctx) })
	running.Go(func() {
		if err := syncer.Run(ctx); err != nil {
			fail(fmt.Errorf("write the map: %w", err))
		}
	})
	go func() { running.Wait(); close(done) }()
	return nil
}

// detach takes the kernel map away from under the replica. It reports whether
// there was one.
func (m *replica) detach(next MapState) bool {
	m.mu.Lock()
	a := m.kernel
	m.kernel, m.state = nil, next
	m.room.Store(0)
	m.verdict = notReady
	m.forgive(&m.goal)
	m.forgive(&m.heard)
	m.mu.Unlock()
	if a == nil {
		return false
	}
	m.daemon.publish() // not ready, at once
	m.daemon.capture.Unwatch(a.m.Info().ID)
	a.stop()
	if a.done != nil {
		<-a.done
	}
	m.daemon.claims.release(a.m.Info().ID, m)
	if err := a.m.Close(); err != nil {
		m.log.Warn("a map that has gone was not closed", "error", err)
	}
	return true
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
