package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

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

// pollInterval is how often the kernel is asked whether a map has come or gone.
const pollInterval = 500 * time.Millisecond

// settleKeys is how many new keys of a map are followed at a time: 6 MiB at most.
const settleKeys = 1 << 18

// replica is one configured map at this node. Kernel maps come and go under it;
// its table stays.
type replica struct {
	daemon *Daemon
	name   string
	ref    kmap.Ref
	log    *slog.Logger
	// schemaFile is where the types are read from instead of the kernel, if set.
	schemaFile string

	mu         sync.Mutex
	state      MapState
	err        error
	table      *table.Table   // nil until a first map gave the sizes
	schema     *schema.Schema // of the table
	kernel     *attachment    // nil while there is no map
	since      time.Time      // when the current kernel map was attached
	claimHead  uint64         // the table's head when it was claimed
	remembered bool           // the state file names the current kernel map
}

// attachment is one kernel map under a replica.
type attachment struct {
	m      *kmap.Map
	syncer *kmap.Syncer
	stop   context.CancelFunc
	done   chan struct{}
}

func newReplica(d *Daemon, setting string) (*replica, error) {
	m, err := config.ParseMap(setting)
	if err != nil {
		return nil, err
	}
	ref, err := kmap.ParseRef(m.Ref)
	if err != nil {
		return nil, err
	}
	return &replica{daemon: d, name: m.Name, ref: ref, state: MapWaiting, log: d.log.With("map", m.Name)}, nil
}

// Pauses between tries of a map that could not be replicated.
const (
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// run follows the kernel map until ctx ends. What is wrong with a map sets that
// map aside, to be tried again, and ends nothing else.
func (m *replica) run(ctx context.Context) error {
	watcher := kmap.NewWatcher(m.ref, pollInterval)
	m.log.Info("waiting for the map", "ref", m.ref.String())
	for pause := minRetry; ctx.Err() == nil; pause = min(2*pause, maxRetry) {
		began := time.Now()
		err := m.follow(ctx, watcher)
		m.rememberWhenApplied() // the next tick may come too late
		m.detach(MapWaiting)
		if ctx.Err() != nil {
			break
		}
		m.refuse(err)
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

// follow attaches each kernel map that the reference comes to mean. It returns
// what went wrong with one, or with looking for it.
func (m *replica) follow(ctx context.Context, watcher *kmap.Watcher) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
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
			continue
		}
		if err := m.attach(ctx, event, fail); err != nil {
			return err
		}
	}
}

// refuse sets the map aside.
func (m *replica) refuse(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil || m.err.Error() != err.Error() {
		m.log.Error("the map cannot be replicated, trying again", "error", err)
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
	a := &attachment{m: opened, stop: func() {}}
	known, _ := m.current()
	t, err := m.tableFor(opened.Info(), s)
	if err != nil {
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
	n, err := m.load(ctx, opened, t, known != nil)
	if err != nil {
		return err
	}
	m.log.Info("the map is attached", "id", event.ID, "entries", n, "load_seconds", time.Since(began).Seconds(),
		"read", opened.Method().Read, "write", opened.Method().Write)
	if err := m.replicate(t, s, opened.Info(), known != nil); err != nil {
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

// tableFor returns the replica's table, made to measure for the first map.
func (m *replica) tableFor(info kmap.Info, s *schema.Schema) (*table.Table, error) {
	if t, old := m.current(); t != nil {
		if !schema.Equal(old, s) {
			return nil, errors.New("the new map's entries have another layout: restart syncd to begin anew")
		}
		return t, nil
	}
	return table.New(table.Options{
		Self: m.daemon.self, KeySize: info.KeySize, ValueSize: info.ValueSize,
		SameMap:         m.daemon.state.same(m.name, info.ID),
		TombstoneTTL:    m.daemon.config.TombstoneTTL,
		EvictionDeletes: m.daemon.config.EvictionDeletes,
		SettleKeys:      settleKeys,
		Significant:     s.Significant(),
		Carried:         s.Carried(),
	})
}

func (m *replica) begin(a *attachment, t *table.Table, s *schema.Schema) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel, m.table, m.schema, m.state, m.err, m.since = a, t, s, MapLoading, nil, time.Now()
	m.remembered = m.daemon.state.same(m.name, a.m.Info().ID)
}

// load enters the map's content: as what an earlier incarnation may have left
// when the table is new, as what the load balancer has written since when a new
// map came under a table that already knows more, and refills it.
func (m *replica) load(ctx context.Context, k *kmap.Map, t *table.Table, refill bool) (int, error) {
	if !refill {
		return kmap.LoadAll(ctx, k, t)
	}
	t.Update(func(tx *table.Tx) { tx.Refill() })
	n := 0
	err := k.ForEach(ctx, func(key, value []byte) error {
		n++
		change := table.Change{Key: key, Value: value, Time: m.daemon.clock.now(), Op: table.OpUpdate, Context: table.ContextProcess}
		t.Update(func(tx *table.Tx) { tx.Local(&change) })
		return nil
	})
	return n, err
}

// replicate offers the map to peers. Only then may it be claimed: until the
// replicator knows of it, nobody is waited for.
func (m *replica) replicate(t *table.Table, s *schema.Schema, info kmap.Info, known bool) error {
	var err error
	if !known {
		err = m.daemon.replicator.AddMap(m.name, replicate.Layout{
			KeySize: info.KeySize, ValueSize: info.ValueSize, LRU: info.Type == ebpf.LRUHash || info.Type == ebpf.LRUCPUHash,
			Schema: s, Links: m.daemon.links,
		}, t)
	}
	if err == nil {
		m.setState(MapSyncing)
	}
	return err
}

func (m *replica) startSyncer(ctx context.Context, a *attachment, t *table.Table, fail context.CancelCauseFunc) error {
	syncer, err := kmap.NewSyncer(t, a.m, kmap.SyncerOptions{Now: m.daemon.clock.now, Logger: m.log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	m.mu.Lock()
	a.syncer, a.stop, a.done = syncer, cancel, done
	m.mu.Unlock()
	go func() {
		defer close(done)
		if err := syncer.Run(ctx); err != nil {
			fail(fmt.Errorf("write the map: %w", err))
		}
	}()
	return nil
}

// detach takes the kernel map away from under the replica. It reports whether
// there was one.
func (m *replica) detach(next MapState) bool {
	m.mu.Lock()
	a := m.kernel
	m.kernel, m.state = nil, next
	m.mu.Unlock()
	if a == nil {
		return false
	}
	m.daemon.capture.Unwatch(a.m.Info().ID)
	a.stop()
	if a.done != nil {
		<-a.done
	}
	if err := a.m.Close(); err != nil {
		m.log.Warn("a map that has gone was not closed", "error", err)
	}
	return true
}

// claim ends the first synchronisation once nothing is waited for, or the time
// limit is over: what is in the map and no peer knows is then this node's.
func (m *replica) claim() {
	m.mu.Lock()
	state, t, since := m.state, m.table, m.since
	m.mu.Unlock()
	switch state {
	case MapSyncing:
	case MapReplicating:
		m.rememberWhenApplied()
		return
	default:
		return
	}
	// Asked for only now: before the map was offered to peers none was waited for.
	waiting := m.daemon.waitingForPeers()
	switch {
	case waiting != "" && !m.daemon.pastSyncTimeout(since):
		return
	case waiting != "":
		m.log.Warn("peers did not answer within sync-timeout, going on without them", "waiting_for", waiting)
	}
	unversioned := t.Stats().Unversioned
	claimAll(t, m.daemon.clock.now)
	m.mu.Lock()
	m.claimHead = t.Stats().Head
	if m.state == MapSyncing {
		m.state = MapReplicating
	}
	m.mu.Unlock()
	m.log.Info("the map is replicating", "claimed", unversioned, "live", t.Stats().Live)
}

// rememberWhenApplied notes the kernel map for the next incarnation, once it
// holds what peers told: only from then on does an absent key mean a delete.
func (m *replica) rememberWhenApplied() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != MapReplicating || m.remembered || m.kernel == nil || m.table.Stats().Applied < m.claimHead {
		return
	}
	m.remembered = true // tried once: a full disk must not flood the log
	if err := m.daemon.state.remember(m.name, m.kernel.m.Info().ID); err != nil {
		m.log.Error("the map is not remembered: after a restart its deletes will be undone", "error", err)
	}
}

// notReady says what the map still lacks, or nothing.
func (m *replica) notReady() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return m.err.Error()
	case m.state != MapReplicating:
		return string(m.state)
	case m.table.Stats().Applied < m.claimHead:
		return "received entries are being written to the kernel map"
	}
	return ""
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
