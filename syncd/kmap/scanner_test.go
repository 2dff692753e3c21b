package kmap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/ebpf"
	"go.uber.org/goleak"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// scanFixture is a syncFixture with a Scanner that scans on request.
type scanFixture struct {
	*syncFixture
	scanner *Scanner
	stop    func()
}

func newScanFixture(t *testing.T, b *syncFixture, o ScannerOptions) *scanFixture {
	t.Helper()
	if o.Interval == 0 {
		o.Interval = time.Hour
	}
	s, err := NewScanner(b.tab, b.m, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	stop := sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return &scanFixture{b, s, stop}
}

// scanOnce waits for one scan, and for the rereads that it requests.
func (s *scanFixture) scanOnce() ScannerStats {
	s.t.Helper()
	before := s.scanner.Stats()
	s.scanner.Request()
	poll.Eventually(s.t, "a scan", func() bool { return s.scanner.Stats().Scans > before.Scans })
	s.awaitSynced()
	return s.scanner.Stats()
}

// awaitEqual waits until the table's live records equal the entries of the kernel map. The results
// of the last rereads may still be on their way into the table.
func (s *scanFixture) awaitEqual() {
	s.t.Helper()
	diff := ""
	poll.Eventually(s.t, "the table equals the kernel map", func() bool { diff = s.differences(); return diff == "" },
		func() any { return diff })
}

func (s *scanFixture) differences() string {
	kernel := content(s.t, s.m)
	live := 0
	cursor := s.tab.NewCursor(0)
	defer cursor.Close()
	diff := ""
	s.tab.View(func(tx *table.Tx) {
		var rec table.Record
		for diff == "" && tx.Next(cursor, &rec) {
			if rec.Delete {
				continue
			}
			live++
			if got, ok := kernel[string(rec.Key)]; !ok || got != string(rec.Value) {
				diff = fmt.Sprintf("key %x: table %x, map %x, found %v", rec.Key, rec.Value, got, ok)
			}
		}
	})
	if diff == "" && live != len(kernel) {
		diff = fmt.Sprintf("entries: %d in the table, %d in the map", live, len(kernel))
	}
	return diff
}

// put writes an entry by bpf(2). The fixture has no hooks that report it.
func (s *scanFixture) put(n, g int) {
	s.t.Helper()
	key, value := entry(n, g, testKey, testValue)
	if err := s.m.m.Put(key, value); err != nil {
		s.t.Error(err)
	}
}

// load writes entries [0, n) of generation 1 to the kernel map, and loads them into the table.
func (s *scanFixture) load(n int) {
	s.t.Helper()
	for i := range n {
		s.put(i, 1)
	}
	if _, err := LoadAll(s.t.Context(), s.m, s.tab, now); err != nil {
		s.t.Fatal(err)
	}
	s.tab.Update(func(tx *table.Tx) { tx.Adopt(n) })
	s.awaitSynced()
}

// scanMaps are maps for all read methods.
var scanMaps = []struct {
	name string
	spec *ebpf.MapSpec
	opts Options
}{
	{"hash", hashSpec(testKey, testValue, 10000), Options{}},
	{"lru", withType(hashSpec(testKey, testValue, 10000), ebpf.LRUHash), Options{}},
	{"lock", lockSpec(testValue, 8, 10000), Options{}},
	{"bpf2", hashSpec(testKey, testValue, 10000), Options{NoProgram: true}},
}

// TestScanFindsMissedChanges checks that one scan finds all changes that no hook reported.
func TestScanFindsMissedChanges(t *testing.T) {
	for _, kind := range scanMaps {
		t.Run(kind.name, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			m := openMap(t, newKernelMap(t, kind.spec), kind.opts)
			s := newScanFixture(t, newSyncFixture(t, newTable(t, table.Options{}), m), ScannerOptions{})
			s.load(5000)
			if st := s.scanOnce(); st.Found != 0 || st.Entries < 5000 || st.Urgent != 1 || st.Began == 0 || st.Work <= 0 {
				t.Errorf("scan without changes: got %+v, want no differences", st)
			}
			for i := range 1000 { // changed
				s.put(i, 2)
			}
			keys := make([]byte, 0, 1000*testKey)
			for i := range 1000 { // deleted, many per call
				key, _ := entry(1000+i, 0, testKey, testValue)
				keys = append(keys, key...)
			}
			if n, err := mapBatch(cmdMapDeleteBatch, m.m.FD(), batchArgs{keys: keys, count: 1000}); err != nil || n != 1000 {
				t.Fatalf("delete by one call: got %d entries, error %v, want 1000", n, err)
			}
			for i := range 1000 { // new
				s.put(5000+i, 1)
			}
			if st := s.scanOnce(); st.Found != 3000 {
				t.Errorf("scan: got %d differences, want 3000", st.Found)
			}
			s.awaitEqual()
			for n, g := range map[int]int{0: 2, 999: 2, 1000: -1, 1999: -1, 2000: 1, 5999: 1} {
				rec, ok := s.record(n)
				_, value := entry(n, g, testKey, testValue)
				if !ok || rec.Delete != (g < 0) || g >= 0 && !bytes.Equal(rec.Value, m.expectedLookup(value)) {
					t.Errorf("record %d: got %+v, found %t, want a delete: %t, otherwise value %x",
						n, rec, ok, g < 0, m.expectedLookup(value))
				}
			}
			if st := s.scanOnce(); st.Found != 3000 {
				t.Errorf("second scan: got %d more differences, want 0", st.Found-3000)
			}
			s.stop()
			s.syncFixture.stop()
		})
	}
}

// TestScanRestoresPeersEntries deletes entries of a peer like this node's collector does on expiry.
// The scan must restore them and must not replicate the deletes.
func TestScanRestoresPeersEntries(t *testing.T) {
	s := newScanFixture(t, newSyncFixture(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 1000)), Options{})), ScannerOptions{})
	s.remote(0, 500, 1)
	s.awaitSynced()
	s.scanOnce() // confirms the entries that syncd wrote
	for i := range 500 {
		key, _ := entry(i, 0, testKey, testValue)
		if err := s.m.m.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
	s.scanOnce()
	poll.Eventually(t, "all entries are restored", func() bool { return len(content(t, s.m)) == 500 })
	checkContent(t, s.m, 0, 500, 1)
	for i := range 500 {
		if rec, _ := s.record(i); rec.Delete || rec.Owner != s.peer {
			t.Fatalf("record %d: got %+v, want a live record of the peer", i, rec)
		}
	}
	if st := s.tab.Stats(); st.Restored != 500 || st.Tombstones != 0 {
		t.Errorf("table stats: got %+v, want 500 restored and no tombstones", st)
	}
}

// TestScanDuringWrites runs unreported writes, reported writes and deltas of peers concurrently
// with scans. In the end, table and map must be equal.
func TestScanDuringWrites(t *testing.T) {
	s := newScanFixture(t, newSyncFixture(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 4000)), Options{})),
		ScannerOptions{Interval: time.Millisecond, Budget: NewScanBudget(1)})
	s.load(1000)
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for range 3000 {
				n, g := random.IntN(2000), random.IntN(100)
				switch {
				case w == 3:
					s.remoteUnchecked(n, g-20)
				case random.IntN(3) == 0:
					key, _ := entry(n, 0, testKey, testValue)
					if err := s.m.m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
						t.Error(err)
					} else if w == 0 && err == nil {
						s.local(n, -1, table.ContextPacket)
					}
				default:
					s.put(n, g)
					if w == 0 { // hooks report some writes
						s.local(n, g, table.ContextPacket)
					}
				}
			}
		})
	}
	writers.Wait()
	// Without writers, two scans suffice: one finds differences, and one checks the rereads.
	s.scanOnce()
	s.scanOnce()
	s.awaitEqual()
	t.Logf("%+v", s.scanner.Stats())
}

// remoteUnchecked applies one delta of the peer, a delete if g < 0, and ignores the outcome.
func (b *syncFixture) remoteUnchecked(n, g int) {
	b.tab.Update(func(tx *table.Tx) {
		now := time.Now().UnixNano()
		key, value := entry(n, g, testKey, testValue)
		d := table.Delta{Key: key, Value: value, Version: table.Version(now), Owner: b.peer, Delete: g < 0}
		tx.Remote(&d, now, table.RemoteOptions{})
	})
}

// TestScanIntervalCoversDuration logs the share of a core that a scan uses. It does not check the
// share, because other processes run at the same time.
func TestScanIntervalCoversDuration(t *testing.T) {
	s := newScanFixture(t, newSyncFixture(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 20000)), Options{})),
		ScannerOptions{Interval: time.Millisecond})
	s.load(20000)
	before := s.scanner.Stats()
	poll.Eventually(t, "a scan of all entries", func() bool { return s.scanner.Stats().Scans > before.Scans+1 })
	st := s.scanner.Stats()
	t.Logf("20000 entries in %s, of it %s work: %.1f %% of a core", st.Last, st.Work, 100*float64(st.Work)/float64(st.Last))
	if st.Interval < st.Last {
		t.Errorf("scan of %s: got reported interval %s, want at least the duration of the scan",
			st.Last, st.Interval)
	}
}

// newScannerWithoutMap returns a Scanner without a kernel map, for tests that simulate the start
// and the end of scans.
func newScannerWithoutMap(t *testing.T, o ScannerOptions) *Scanner {
	s, err := NewScanner(newTable(t, table.Options{}), &Map{info: Info{Name: "m", KeySize: testKey, ValueSize: testValue}}, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestScanIntervalStretches(t *testing.T) {
	var out strings.Builder
	s := newScannerWithoutMap(t, ScannerOptions{Interval: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	for _, step := range []struct {
		took     time.Duration
		urgent   bool
		interval time.Duration
		log      string // expected in the last of the log lines so far
		lines    int
	}{
		{2 * time.Second, false, 10 * time.Second, "", 0},
		{12 * time.Second, false, 12 * time.Second, "scans take longer", 1},
		{3 * time.Second, true, 12 * time.Second, "scans take longer", 1}, // has another budget
		{30 * time.Second, false, 30 * time.Second, "scans take longer", 1},
		{9 * time.Second, false, 10 * time.Second, "scans take longer", 1}, // possibly not for long
		{5 * time.Second, false, 10 * time.Second, "within scan-interval again", 2},
		{11 * time.Second, false, 11 * time.Second, "scans take longer", 3},
	} {
		s.stats.Last = step.took
		s.recordFinished(!step.urgent, 10*time.Second)
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if lines[0] == "" {
			lines = nil
		}
		if got := s.Stats().Interval; got != step.interval || len(lines) != step.lines ||
			step.lines > 0 && !strings.Contains(lines[step.lines-1], step.log) {
			t.Errorf("%+v: got interval %s, want %s; want %d lines of log, the last with %q, got\n%s",
				step, got, step.interval, step.lines, step.log, out.String())
		}
	}
	synctest.Test(t, func(t *testing.T) { // a scan that does not end extends the interval too
		s.running = time.Now()
		time.Sleep(time.Minute)
		if got := s.Stats().Interval; got != time.Minute {
			t.Errorf("interval of a scan that has run for a minute: got %s, want %s", got, time.Minute)
		}
	})
}

// TestScanRequests requests a scan during a pause, during another scan that it replaces, and during
// an urgent scan that it follows.
func TestScanRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScannerWithoutMap(t, ScannerOptions{Interval: time.Hour, Budget: NewScanBudget(0.01)})
		begin := time.Now()
		if !s.await(t.Context(), begin) || time.Since(begin) != time.Hour {
			t.Errorf("wait for a scan in an hour: got %s, want a scan after %s", time.Since(begin), time.Hour)
		}
		begin = time.Now()
		time.AfterFunc(time.Minute, s.Request)
		if !s.await(t.Context(), begin) || time.Since(begin) != time.Minute {
			t.Errorf("wait for a scan requested after a minute: got %s, want a scan after %s", time.Since(begin), time.Minute)
		}
		p := scanPass{Scanner: s, urgent: true}
		s.urgentRequested = false
		work := func(after time.Duration) (time.Duration, error) {
			begin := time.Now()
			time.AfterFunc(after, s.Request)
			err := p.pauseFor(t.Context(), time.Second)
			return time.Since(begin), err
		}
		if took, err := work(100 * time.Millisecond); err != nil || took != time.Second {
			t.Errorf("pause of an urgent scan: got %v after %s, want nil and %s", err, took, time.Second)
		}
		if !s.await(t.Context(), time.Now()) || !s.requested() {
			t.Error("request during an urgent scan: got no further scan, want one")
		}
		p.urgent, s.urgentRequested = false, false
		if took, err := work(100 * time.Millisecond); !errors.Is(err, errPreempted) || took != 100*time.Millisecond {
			t.Errorf("pause of another scan: got %v after %s, want an error with errPreempted and %s", err, took, 100*time.Millisecond)
		}
	})
}

func TestNewScannerRejectsSizeMismatch(t *testing.T) {
	_, err := NewScanner(newTable(t, table.Options{}), &Map{info: Info{Name: "m", KeySize: 1, ValueSize: 2}}, ScannerOptions{})
	if err == nil || !strings.Contains(err.Error(), "sizes differ") {
		t.Errorf("NewScanner: got error %v, want an error with \"sizes differ\"", err)
	}
}
