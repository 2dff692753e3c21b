package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/replicate"
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

	mu         sync.Mutex
	state      MapState
	err        error
	table      *table.Table // nil until a first map gave the sizes
	kernel     *attachment  // nil while there is no map
	since      time.Time    // when the current kernel map was attached
	claimHead  uint64       // the table's head when it was claimed
	remembered bool         // the state file names the current kernel map
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
	opened, err := kmap.Open(event.Map, kmap.Options{OwnWriter: m.daemon.ownWriter, Logger: m.log})
	err = errors.Join(err, event.Map.Close())
	if err != nil {
		return err
	}
	a := &attachment{m: opened, stop: func() {}}
	known := m.currentTable()
	t, err := m.tableFor(opened.Info())
	if err != nil {
		return errors.Join(err, opened.Close())
	}
	m.begin(a, t)
	if err := m.daemon.capture.Watch(event.ID, t); err != nil {
		return err
	}
	began := time.Now()
	n, err := m.load(ctx, opened, t, known != nil)
	if err != nil {
		return err
	}
	m.log.Info("the map is attached", "id", event.ID, "entries", n, "load_seconds", time.Since(began).Seconds(),
		"read", opened.Method().Read, "write", opened.Method().Write)
	if err := m.replicate(t, opened.Info(), known != nil); err != nil {
		return err
	}
	return m.startSyncer(ctx, a, t, fail)
}

// tableFor returns the replica's table, made to measure for the first map.
func (m *replica) tableFor(info kmap.Info) (*table.Table, error) {
	if err := capture.CheckEntry(info.KeySize, info.ValueSize); err != nil {
		return nil, err
	}
	if t := m.currentTable(); t != nil {
		if t.KeySize() != info.KeySize || t.ValueSize() != info.ValueSize {
			return nil, fmt.Errorf("the new map's entries have %d+%d bytes and the table's %d+%d: restart syncd to begin anew",
				info.KeySize, info.ValueSize, t.KeySize(), t.ValueSize())
		}
		return t, nil
	}
	return table.New(table.Options{
		Self: m.daemon.self, KeySize: info.KeySize, ValueSize: info.ValueSize,
		SameMap:         m.daemon.state.same(m.name, info.ID),
		TombstoneTTL:    m.daemon.config.TombstoneTTL,
		EvictionDeletes: m.daemon.config.EvictionDeletes,
		SettleKeys:      settleKeys,
	})
}

func (m *replica) begin(a *attachment, t *table.Table) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel, m.table, m.state, m.err, m.since = a, t, MapLoading, nil, time.Now()
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

func (m *replica) replicate(t *table.Table, info kmap.Info, known bool) error {
	m.setState(MapSyncing)
	if known {
		return nil
	}
	return m.daemon.replicator.AddMap(m.name, replicate.Layout{
		KeySize: info.KeySize, ValueSize: info.ValueSize, LRU: info.Type == ebpf.LRUHash,
	}, t)
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
	if err := m.daemon.capture.Unwatch(a.m.Info().ID); err != nil {
		m.log.Warn("the hooks keep watching a map that has gone", "error", err)
	}
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
func (m *replica) claim(waiting string) {
	m.mu.Lock()
	state, t, since := m.state, m.table, m.since
	m.mu.Unlock()
	switch {
	case state == MapReplicating:
		m.rememberWhenApplied()
		return
	case state != MapSyncing:
		return
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
	if m.remembered || m.kernel == nil || m.table.Stats().Applied < m.claimHead {
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

func (m *replica) currentTable() *table.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table
}
