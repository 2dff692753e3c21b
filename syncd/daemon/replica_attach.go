package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/reference"
	"mapsync/syncd/replicate"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// attachment is one kernel map of a replica.
type attachment struct {
	m *kmap.Map
	// source is the id of the map that the settings name. It differs from that of m if drainSums is not nil.
	source    uint32
	drainSums *drainSums
	// translation is that of the table that is attached; nil: entries have no ids of other maps.
	translation *reference.Translation

	syncer *kmap.Syncer
	stop   context.CancelFunc
	done   chan struct{}

	uses *capture.Uses // nil: each use changes its entry, or entries do not expire

	hooksInPlace bool  // the hook on lookups finds changes in place
	inPlaceErr   error // why it does not, although the settings require it

	scanner   *kmap.Scanner
	began     int64 // when it was attached, before its content was read; ns of the daemon's clock
	requested int64 // the latest time for which scannedSince requested a scan

	unread   uint64 // table.Stats.RereadsDropped at the last check
	unreadAt int64  // when it last increased, 0: a scan has read the keys since
}

// attach attaches a kernel map to the replica. It attaches the hooks before it reads the content,
// so that it misses no change between the two. It arranges that fail is called if the map stops
// working later. After an error, the caller calls detach.
func (m *replica) attach(ctx context.Context, event kmap.Event, fail context.CancelCauseFunc) error {
	a, s, err := m.open(event.Map)
	if err != nil {
		return err
	}
	if err := m.daemon.assignments.acquire(event.ID, m); err != nil {
		return errors.Join(err, a.close())
	}
	a.stop, a.began = func() {}, m.daemon.clock.now()
	opened, info := a.m, a.m.Info()
	if m.wasOffered && (m.offeredElements > 0) != kmap.IsArray(info.Type) {
		m.daemon.assignments.release(event.ID, m)
		return errors.Join(fmt.Errorf("%w: an array has replaced a hash map, or the reverse; restart syncd", kmap.ErrUnsupported), a.close())
	}
	t, err := m.tableFor(a, s)
	if err != nil {
		m.daemon.assignments.release(event.ID, m)
		return errors.Join(err, a.close())
	}
	a.unread = t.Stats().RereadsDropped
	m.beginLoading(a, t, s)
	if err := m.watch(a, t); err != nil {
		return err
	}
	m.watchInPlace(a)
	if err := m.watchUses(a); err != nil {
		return err
	}
	began := time.Now()
	n, err := m.load(ctx, opened, t)
	if err != nil {
		return err
	}
	m.followMap(event.ID)
	m.log.Info("map attached", "id", event.ID, "entries", n, "load_seconds", time.Since(began).Seconds(),
		"read", opened.AccessMethods().Read, "write", opened.AccessMethods().Write)
	if err := m.replicate(t, s, opened.Info()); err != nil {
		return err
	}
	return m.startSyncer(ctx, a, t, fail)
}

// watch makes the hooks report the writes to the map.
func (m *replica) watch(a *attachment, t *table.Table) error {
	switch i := a.m.Info(); {
	case a.drainSums != nil:
		return m.daemon.capture.WatchSums(a.source, t, a.drainSums.origin())
	case i.CPUs > 0 || i.ValueSize > capture.MaxValueSize || kmap.IsArray(i.Type):
		return m.daemon.capture.WatchKeys(a.source, t) // an event does not contain the whole value, or whether there is an entry
	}
	return m.daemon.capture.Watch(a.source, t)
}

// close closes what open has opened.
func (a *attachment) close() error {
	var errs []error
	if a.m != nil {
		errs = append(errs, a.m.Close())
	}
	if a.drainSums != nil {
		errs = append(errs, a.drainSums.close())
	}
	return errors.Join(errs...)
}

// open reads the types of the map and opens it for access. It closes raw. The caller closes the
// result.
func (m *replica) open(raw *ebpf.Map) (*attachment, *schema.Schema, error) {
	defer raw.Close()
	info, err := kmap.Describe(raw)
	if err != nil {
		return nil, nil, err
	}
	if info.Unsupported != nil {
		return nil, nil, info.Unsupported
	}
	if err := refuseDeletes(&m.daemon.config, m.name, &info); err != nil {
		return nil, nil, err
	}
	s, err := m.schemaFor(info)
	if err != nil {
		return nil, nil, err
	}
	if err := refuseTimers(&m.daemon.config, m.name, hasTimer(m.name, m.schemaFile, s, info)); err != nil {
		return nil, nil, err
	}
	if err := refuseUnseenUses(&m.daemon.config, m.name, info.Type, s, m.daemon.capture.SeesUses); err != nil {
		return nil, nil, err
	}
	if len(s.References()) > 0 && (m.daemon.config.DrainSums(m.name) || m.daemon.config.WatchesUses(m.name)) {
		return nil, nil, fmt.Errorf("%w: a map with references can have neither drain-sums, nor takeover-expiry without a field", kmap.ErrUnsupported)
	}
	if m.daemon.config.DrainSums(m.name) {
		a, err := m.openDrainSums(raw, &info, s)
		return a, s, err
	}
	translation, err := m.translationFor(s)
	if err != nil {
		return nil, nil, err
	}
	opened, err := kmap.Open(raw, kmap.Options{
		OwnWriteMarks: m.daemon.ownWriteMarks, Keep: tableRanges(s.Local()), Carried: s.Carried(), Translation: translation,
		Maps: m.daemon.openMaps(), ScanCPUs: m.daemon.scanCPUs, Logger: m.log,
	})
	if err != nil {
		return nil, nil, err
	}
	return &attachment{m: opened, source: info.ID, translation: translation}, s, nil
}

// translationFor returns the translation for a kernel map with entries of a schema: that of the table if it stays in use.
func (m *replica) translationFor(s *schema.Schema) (*reference.Translation, error) {
	if t, old := m.current(); m.wasOffered && schema.Identical(old, s) {
		return translationOf(t), nil
	}
	return m.daemon.references.translation(s)
}

func (m *replica) beginLoading(a *attachment, t *table.Table, s *schema.Schema) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel, m.table, m.schema, m.state, m.err, m.since = a, t, s, MapLoading, nil, time.Now()
	info := a.m.Info()
	m.described.Store(describeKernel(&info))
	m.unheldSerial, m.restores, m.restoreAsked = 0, false, time.Time{}
	if m.identitySaved = m.daemon.state.sameMap(m.name, identityOf(&info)); !m.identitySaved {
		m.daemon.state.removeIdentity(m.name) // should the former map return, it lacks the changes made meanwhile
	}
	// A reload may have changed the key since the table was created.
	t.Update(func(tx *table.Tx) {
		tx.SetDigestKey(m.daemon.digestKey(m.name))
		tx.HoldDeletes(true) // until publish finds that all maps are ready
	})
	m.useCounterTypes(s)
	m.readyState = notReady
	m.daemon.poke()
}

// elements returns the number of elements of an array, and 0 for other maps.
func elements(info *kmap.Info) int {
	if kmap.IsArray(info.Type) {
		return info.MaxEntries
	}
	return 0
}

// replicate offers the map to peers. Its entries are adopted only afterwards, because the replicator
// does not wait for peers before. A converted table replaces the old one, and streams begin with a
// full sync.
func (m *replica) replicate(t *table.Table, s *schema.Schema, info kmap.Info) error {
	if m.offered != t || m.offeredElements != elements(&info) {
		if m.offered != nil {
			m.daemon.replicator.RemoveMap(m.name)
			m.offered = nil
		}
		err := m.daemon.replicator.AddMap(m.name, replicate.Layout{
			KeySize: info.KeySize, ValueSize: info.ValueSize, LRU: isLRU(&info), Elements: elements(&info),
			Schema: s, Links: m.daemon.namesIn(t), Kernel: m.describedKernel,
		}, t)
		if err != nil {
			return err
		}
		m.offered, m.offeredSchema, m.wasOffered = t, s, true
		m.stop = nil // the table has it
		m.offeredElements = elements(&info)
	}
	m.setState(MapSyncing)
	m.closeFirstRead()
	return nil
}

// describeKernel returns what peers receive about a kernel map.
func describeKernel(info *kmap.Info) *replicate.KernelMap {
	k := &replicate.KernelMap{MaxEntries: info.MaxEntries, Flags: info.Flags, Type: replicate.MapTypeHash}
	switch {
	case isLRU(info):
		k.Type = replicate.MapTypeLRUHash
	case kmap.IsArray(info.Type):
		k.Type = replicate.MapTypeArray
	}
	return k
}

func (m *replica) describedKernel() replicate.KernelMap {
	if k := m.described.Load(); k != nil {
		return *k
	}
	return replicate.KernelMap{}
}

func (m *replica) startSyncer(ctx context.Context, a *attachment, t *table.Table, fail context.CancelCauseFunc) error {
	syncer, err := kmap.NewSyncer(t, a.m, kmap.SyncerOptions{
		Now: m.daemon.clock.now, Uses: a.syncerUses(), Ended: processEnded, BeforeRestore: m.beforeRestore, Logger: m.log,
	})
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
	if a.drainSums != nil {
		running.Go(func() { m.runDrainSums(ctx, a, t) })
	}
	running.Go(func() {
		if err := syncer.Run(ctx); err != nil {
			fail(fmt.Errorf("write the map: %w", err))
		}
	})
	go func() { running.Wait(); close(done) }()
	return nil
}

// detach detaches the kernel map from the replica and sets the state next. It returns when the
// map is closed. It reports whether a map was attached.
func (m *replica) detach(next MapState) bool {
	m.mu.Lock()
	a := m.kernel
	m.kernel, m.state = nil, next
	m.described.Store(nil)
	m.readyState = notReady
	m.removeBarrier(&m.readyBarrier)
	m.removeBarrier(&m.syncBarrier)
	m.removeBarrier(&m.returnBarrier)
	m.restoreOffered()
	m.mu.Unlock()
	if a == nil {
		return false
	}
	m.daemon.publish() // the node is not ready from now on
	m.daemon.capture.Unwatch(a.source)
	a.stop()
	if a.done != nil {
		<-a.done
	}
	m.daemon.assignments.release(a.source, m)
	if err := a.close(); err != nil {
		m.log.Warn("failed to close detached map", "error", err)
	}
	return true
}
