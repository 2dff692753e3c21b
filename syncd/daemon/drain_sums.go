package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/drained"
	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// drainSums is a drained map and its sums. The kernel map of the replica is the map of sums.
type drainSums struct {
	sums    *drained.Sums
	drained *kmap.Map
	logged  uint64 // drained entries and calls that are missing in the sums, as last logged
	// loggedAt is the time of the last line about missing entries.
	loggedAt time.Time
	expiry   failureLog // of the removal of sums that do not change
	missing  missingSums
}

// missingSums notes when entries were last found missing. Those before the start of syncd have no time.
type missingSums struct {
	mu    sync.Mutex
	known bool   // count is valid
	count uint64 // at the last call of note
	at    time.Time
}

// note returns the time at which the number of missing entries grew last; zero: not since the start.
func (m *missingSums) note(count uint64, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known && count > m.count {
		m.at = now
	}
	m.known, m.count = true, count
	return m.at
}

// drainMethods are the methods that find what is drained, for each attach method.
var drainMethods = map[capture.Attach][]drained.Method{
	capture.AttachAuto:    {drained.ByFexit, drained.ByKprobe},
	capture.AttachFexit:   {drained.ByFexit},
	capture.AttachKprobe:  {drained.ByKprobe},
	capture.AttachSyscall: {drained.BySyscall},
}

// openDrainSums opens the sums of a drained map, with the schema of the map's entries. The caller closes the attachment.
func (m *replica) openDrainSums(raw *ebpf.Map, info *kmap.Info, s *schema.Schema) (_ *attachment, err error) {
	c := &m.daemon.config
	d := &drainSums{}
	a := &attachment{source: info.ID, drainSums: d}
	// Programs that are pinned for a second name of the map would count its entries, too.
	if err := m.daemon.assignments.acquire(info.ID, m); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			m.daemon.assignments.release(info.ID, m)
			err = errors.Join(err, a.close())
		}
	}()
	o := drained.Options{
		Folder: c.DrainSumsFolder(m.name), Type: info.Type, KeySize: info.KeySize, ValueSize: info.ValueSize,
		MaxEntries: c.DrainSumsRoom(info.MaxEntries), Methods: drainMethods[capture.Attach(c.Attach)],
		Entries: capture.BPFEntries(), Logger: m.log, MeasureCreate: kmap.CallCreateSums.Measure,
		EachKey: func(sums *ebpf.Map, fn func(key []byte) error) error {
			return kmap.EachKey(context.Background(), sums, m.daemon.scanCPUs, fn)
		},
	}
	var added []table.Range
	for _, r := range s.Sums() {
		o.Added = append(o.Added, drained.Range(r))
		added = append(added, table.Range(r))
	}
	if d.sums, err = drained.Open(o); err != nil {
		if errors.Is(err, drained.ErrUnsupported) {
			err = fmt.Errorf("%w: drain-sums: %w", kmap.ErrUnsupported, err)
		}
		return nil, err
	}
	if d.drained, err = kmap.Open(raw, kmap.Options{Maps: m.daemon.openMaps(), ScanCPUs: m.daemon.scanCPUs, Logger: m.log}); err != nil {
		return nil, err
	}
	origin := d.sums.Origin()
	a.m, err = kmap.Open(d.sums.Map(), kmap.Options{
		OwnWriteMarks: m.daemon.ownWriteMarks, Maps: m.daemon.openMaps(), ScanCPUs: m.daemon.scanCPUs, Logger: m.log,
		Drained: &kmap.Drained{Source: d.drained, Origin: origin[:], Added: added, Calls: d.sums.Calls},
	})
	if err != nil {
		return nil, err
	}
	if d.sums.Method() == drained.ByKprobe {
		m.log.Warn("sums may lack drained entries: the kernel skips kprobes at times", "hint", "use a kernel with fexit, and attach: auto")
	}
	d.sums.Follow(info.ID)
	m.log.Info("drained entries are added to sums", "id", info.ID, "attach", string(d.sums.Method()),
		"origin", fmt.Sprintf("%x", origin), "folder", o.Folder, "max_entries", o.MaxEntries)
	return a, nil
}

// DrainSumsStatus describes the sums of a drained map. The numbers count since the sums began, also before a restart of
// syncd.
type DrainSumsStatus struct {
	Attach  string `json:"attach"`         // how syncd finds what is drained: fexit, kprobe or syscall
	Entries uint64 `json:"entries,string"` // drained entries that are in the sums
	// The others are missing in the sums: entries without room, entries that could not be read, and calls whose end was
	// not seen.
	Full        uint64 `json:"without_room,string"`
	Unread      uint64 `json:"unread,string"`
	MissedCalls uint64 `json:"missed_calls,string"`
	// MissingAt is the time at which these numbers grew last; absent: not since the start of syncd.
	MissingAt time.Time `json:"missing_at,omitzero"`
}

func (d *drainSums) status() *DrainSumsStatus {
	s := d.sums.Stats()
	return &DrainSumsStatus{
		Attach: string(d.sums.Method()), Entries: s.Entries, Full: s.Full, Unread: s.Unread, MissedCalls: s.Missed,
		MissingAt: d.missing.note(s.Full+s.Unread+s.Missed, time.Now()),
	}
}

// The metrics of drained maps.
var (
	drainSumsEntries = desc("drain_sums_entries_total", "Drained entries added to the sums of a map.", "map")
	drainSumsMissing = desc("drain_sums_missing_total", "Drained entries that are missing in the sums of a map, by cause; missed_call counts calls.", "map", "cause")
)

func (s sink) drainSums(name string, d *drainSums) {
	if d == nil {
		return
	}
	st := d.sums.Stats()
	s.counter(drainSumsEntries, st.Entries, name)
	for cause, n := range map[string]uint64{"full": st.Full, "unread": st.Unread, "missed_call": st.Missed} {
		s.counter(drainSumsMissing, n, name, cause)
	}
}

func (d *drainSums) close() error {
	var errs []error
	if d.drained != nil {
		errs = append(errs, d.drained.Close())
	}
	if d.sums != nil {
		errs = append(errs, d.sums.Close())
	}
	return errors.Join(errs...)
}

// origin returns the end of the keys of this node's sums.
func (d *drainSums) origin() []byte {
	origin := d.sums.Origin()
	return origin[:]
}

// runDrainSums removes sums that have not changed for drain-sums-ttl, and logs what is missing in the sums, until ctx ends.
func (m *replica) runDrainSums(ctx context.Context, a *attachment, t *table.Table) {
	ttl := m.daemon.config.DrainSumsTTL
	attached := m.daemon.clock.now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(ttl / sumsChecks):
		}
		m.logMissingSums(a.drainSums)
		// An entry that this syncd has found at its start has no time of its last change.
		idle := m.daemon.clock.now() - int64(ttl)
		if attached > idle {
			continue
		}
		if err := m.expireSums(ctx, a, t, idle); ctx.Err() == nil {
			a.drainSums.logExpiry(m.log, err)
		}
	}
}

// logExpiry logs the first of successive errors of the removal of sums that do not change, and the end of
// the errors.
func (d *drainSums) logExpiry(log *slog.Logger, err error) {
	switch {
	case err == nil && d.expiry.succeeded():
		log.Info("sums that do not change are removed again")
	case err != nil && d.expiry.failed():
		log.Warn("failed to remove sums that do not change", "error", err,
			"hint", "grant the privilege that syncd check names; the sums take room until they are removed")
	}
}

// sumsChecks is the number of times that sums are checked during drain-sums-ttl.
const sumsChecks = 8

func (m *replica) logMissingSums(d *drainSums) {
	s := d.sums.Stats()
	if n := s.Unread + s.Full + s.Missed; n > d.logged && time.Since(d.loggedAt) >= failureLogInterval {
		d.logged, d.loggedAt = n, time.Now()
		m.log.Warn("drained entries are missing in the sums", "without_room", s.Full, "unread", s.Unread, "missed_calls", s.Missed,
			"hint", "without_room: raise drain-sums-max-entries; otherwise see docs/replication.md, drained maps")
	}
}

// expireSums removes the sums of this node that have not changed since a time, in ns of the daemon's clock, and whose keys
// the drained map lacks.
func (m *replica) expireSums(ctx context.Context, a *attachment, t *table.Table, idle int64) error {
	return a.m.Stored(ctx, m.daemon.scanBudget, func(key []byte) (err error) {
		unchanged := false
		t.View(func(tx *table.Tx) {
			var rec table.Record
			unchanged = tx.Get(key, &rec) && !rec.Delete && int64(rec.Version)-m.daemon.clock.offset.Load() < idle
		})
		if unchanged {
			err = m.expireSum(a, t, key)
		}
		return err
	})
}

// expireSum removes a sum unless the drained map has the key. A reread enters that into the table, like a delete by the
// load balancer.
func (m *replica) expireSum(a *attachment, t *table.Table, key []byte) error {
	d := a.drainSums
	calls, ended := d.sums.Calls()
	if !ended {
		return nil // the next check removes it
	}
	own := key[:len(key)-drained.OriginSize]
	var inUse bool
	if err := d.drained.Lookup(own, func(_ int, _, _ []byte, found bool) { inUse = found }); err != nil || inUse {
		return err
	}
	before, after := make([]byte, t.ValueSize()), make([]byte, t.ValueSize())
	if err := d.sums.Map().Lookup(key, &before); err != nil {
		return ignoreAbsent(err)
	}
	err := d.sums.Map().LookupAndDelete(key, &after)
	if errors.Is(err, ebpf.ErrNotSupported) { // before 5.14
		after = before
		err = d.sums.Map().Delete(key)
	}
	if err != nil {
		return ignoreAbsent(err)
	}
	if now, ended := d.sums.Calls(); !ended || now != calls || !slices.Equal(before, after) {
		return d.sums.AddBack(own, after) // a call may have drained the key meanwhile
	}
	t.Update(func(tx *table.Tx) { tx.RequestReread(key) })
	return nil
}

func ignoreAbsent(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// removeUnusedSums ends the sums of maps that the settings do not name any more.
func removeUnusedSums(c *config.Config) error {
	if c.PinDir == "" {
		return nil
	}
	parent := filepath.Dir(c.DrainSumsFolder("map"))
	list, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range list {
		if !slices.ContainsFunc(c.DrainSumsMaps, func(name string) bool { return filepath.Base(c.DrainSumsFolder(name)) == e.Name() }) {
			errs = append(errs, drained.Remove(filepath.Join(parent, e.Name())))
		}
	}
	return errors.Join(errs...)
}
