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

	"mapsync/syncd/table"
)

// scanned is a bound table with a Scanner that works when asked to.
type scanned struct {
	*bound
	scanner *Scanner
	stop    func()
}

func scanning(t *testing.T, b *bound, o ScannerOptions) *scanned {
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
	return &scanned{b, s, stop}
}

// once waits for one scan, and for what it leaves to be read again.
func (s *scanned) once() ScannerStats {
	s.t.Helper()
	before := s.scanner.Stats()
	s.scanner.Request()
	eventually(s.t, "a scan", func() bool { return s.scanner.Stats().Scans > before.Scans })
	s.settled()
	return s.scanner.Stats()
}

// equal waits until the table's live records are what the kernel map holds: what was read
// again last may still be on its way into the table.
func (s *scanned) equal() {
	s.t.Helper()
	diff := ""
	for range 100 {
		if diff = s.differences(); diff == "" {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.t.Error(diff)
}

func (s *scanned) differences() string {
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
				diff = fmt.Sprintf("key %x: the table has %x, the map %x (there: %v)", rec.Key, rec.Value, got, ok)
			}
		}
	})
	if diff == "" && live != len(kernel) {
		diff = fmt.Sprintf("%d entries in the table, %d in the map", live, len(kernel))
	}
	return diff
}

// put writes an entry by bpf(2), which no hook reports here.
func (s *scanned) put(n, g int) {
	s.t.Helper()
	key, value := entry(n, g, testKey, testValue)
	if err := s.m.m.Put(key, value); err != nil {
		s.t.Error(err)
	}
}

// load fills the kernel map with entries [0, n) of generation 1 and the table with them.
func (s *scanned) load(n int) {
	s.t.Helper()
	for i := range n {
		s.put(i, 1)
	}
	if _, err := LoadAll(s.t.Context(), s.m, s.tab); err != nil {
		s.t.Fatal(err)
	}
	s.tab.Update(func(tx *table.Tx) { tx.Claim(n) })
	s.settled()
}

// scanMaps are maps that are read in all the ways there are.
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

// One scan finds all that no hook saw.
func TestScanFindsAll(t *testing.T) {
	for _, kind := range scanMaps {
		t.Run(kind.name, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			m := openMap(t, newKernelMap(t, kind.spec), kind.opts)
			s := scanning(t, bind(t, newTable(t, table.Options{}), m), ScannerOptions{})
			s.load(5000)
			if st := s.once(); st.Found != 0 || st.Entries < 5000 || st.Urgent != 1 || st.Began == 0 || st.Work <= 0 {
				t.Errorf("nothing has changed: %+v", st)
			}
			for i := range 1000 { // changed
				s.put(i, 2)
			}
			keys := make([]byte, 0, 1000*testKey)
			for i := range 1000 { // deleted, many at a time
				key, _ := entry(1000+i, 0, testKey, testValue)
				keys = append(keys, key...)
			}
			if n, err := mapBatch(cmdMapDeleteBatch, m.m.FD(), batchArgs{keys: keys, count: 1000}); err != nil || n != 1000 {
				t.Fatal(n, err)
			}
			for i := range 1000 { // new
				s.put(5000+i, 1)
			}
			if st := s.once(); st.Found != 3000 {
				t.Errorf("%d differences found, want 3000", st.Found)
			}
			s.equal()
			for n, g := range map[int]int{0: 2, 999: 2, 1000: -1, 1999: -1, 2000: 1, 5999: 1} {
				rec, ok := s.record(n)
				_, value := entry(n, g, testKey, testValue)
				if !ok || rec.Delete != (g < 0) || g >= 0 && !bytes.Equal(rec.Value, m.seen(value)) {
					t.Errorf("entry %d: %+v", n, rec)
				}
			}
			if st := s.once(); st.Found != 3000 {
				t.Errorf("%d more found when all was known", st.Found-3000)
			}
			s.stop()
			s.bound.stop()
		})
	}
}

// What a peer owns and this node's collector lets expire is put back, and not told.
func TestScanRestoresWhatAPeerOwns(t *testing.T) {
	s := scanning(t, bind(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 1000)), Options{})), ScannerOptions{})
	s.remote(0, 500, 1)
	s.settled()
	s.once() // what the daemon wrote since is now known to be there
	for i := range 500 {
		key, _ := entry(i, 0, testKey, testValue)
		if err := s.m.m.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
	s.once()
	eventually(t, "all are back", func() bool { return len(content(t, s.m)) == 500 })
	checkContent(t, s.m, 0, 500, 1)
	for i := range 500 {
		if rec, _ := s.record(i); rec.Delete || rec.Owner != s.peer {
			t.Fatalf("entry %d: %+v", i, rec)
		}
	}
	if st := s.tab.Stats(); st.Restored != 500 || st.Tombstones != 0 {
		t.Errorf("%+v", st)
	}
}

// Writers that no hook sees, hooks' events and peers, all at once and while scans pass:
// in the end table and map are equal.
func TestScanAmongWriters(t *testing.T) {
	s := scanning(t, bind(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 4000)), Options{})),
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
					s.remoteMaybe(n, g-20)
				case random.IntN(3) == 0:
					key, _ := entry(n, 0, testKey, testValue)
					if err := s.m.m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
						t.Error(err)
					} else if w == 0 && err == nil {
						s.local(n, -1, table.ContextPacket)
					}
				default:
					s.put(n, g)
					if w == 0 { // some are seen
						s.local(n, g, table.ContextPacket)
					}
				}
			}
		})
	}
	writers.Wait()
	// Quiet: two scans at most, one that finds and one that looks again.
	s.once()
	s.once()
	s.equal()
	t.Logf("%+v", s.scanner.Stats())
}

// remoteMaybe has the peer send one entry, a delete for g < 0, whatever becomes of it.
func (b *bound) remoteMaybe(n, g int) {
	b.tab.Update(func(tx *table.Tx) {
		now := time.Now().UnixNano()
		key, value := entry(n, g, testKey, testValue)
		d := table.Delta{Key: key, Value: value, Version: table.Version(now), Owner: b.peer, Delete: g < 0}
		tx.Remote(&d, now, table.RemoteOptions{})
	})
}

// What a scan takes of a core is logged, and judged by nobody: others are at work too.
func TestScanShare(t *testing.T) {
	s := scanning(t, bind(t, newTable(t, table.Options{}), openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 20000)), Options{})),
		ScannerOptions{Interval: time.Millisecond})
	s.load(20000)
	before := s.scanner.Stats()
	eventually(t, "a scan of all", func() bool { return s.scanner.Stats().Scans > before.Scans+1 })
	st := s.scanner.Stats()
	t.Logf("20000 entries in %s, of it %s work: %.1f %% of a core", st.Last, st.Work, 100*float64(st.Work)/float64(st.Last))
	if st.Interval < st.Last {
		t.Errorf("a scan takes %s, and yet they are said to come every %s", st.Last, st.Interval)
	}
}

// bare is a Scanner without a map, to be told when its scans would begin and end.
func bare(t *testing.T, o ScannerOptions) *Scanner {
	s, err := NewScanner(newTable(t, table.Options{}), &Map{info: Info{Name: "m", KeySize: testKey, ValueSize: testValue}}, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestScanIntervalStretches(t *testing.T) {
	var out strings.Builder
	s := bare(t, ScannerOptions{Interval: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	for _, step := range []struct {
		took     time.Duration
		urgent   bool
		interval time.Duration
		log      string // of the lines so far, the last
		lines    int
	}{
		{2 * time.Second, false, 10 * time.Second, "", 0},
		{12 * time.Second, false, 12 * time.Second, "scans take longer", 1},
		{3 * time.Second, true, 12 * time.Second, "scans take longer", 1}, // another budget
		{30 * time.Second, false, 30 * time.Second, "scans take longer", 1},
		{9 * time.Second, false, 10 * time.Second, "scans take longer", 1}, // not for long, perhaps
		{5 * time.Second, false, 10 * time.Second, "keep to scan-interval again", 2},
		{11 * time.Second, false, 11 * time.Second, "scans take longer", 3},
	} {
		s.stats.Last = step.took
		s.note(!step.urgent)
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if lines[0] == "" {
			lines = nil
		}
		if got := s.Stats().Interval; got != step.interval || len(lines) != step.lines ||
			step.lines > 0 && !strings.Contains(lines[step.lines-1], step.log) {
			t.Errorf("%+v: interval %s, log:\n%s", step, got, out.String())
		}
	}
	synctest.Test(t, func(t *testing.T) { // one that does not end shows too
		s.running = time.Now()
		time.Sleep(time.Minute)
		if got := s.Stats().Interval; got != time.Minute {
			t.Errorf("interval %s of a scan that has been running for a minute", got)
		}
	})
}

// A scan is asked for in the pause, in the midst of another that is given up for it, and
// in the midst of an urgent one that it follows.
func TestScanRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bare(t, ScannerOptions{Interval: time.Hour, Budget: NewScanBudget(0.01)})
		begin := time.Now()
		if !s.await(t.Context(), begin.Add(time.Hour)) || time.Since(begin) != time.Hour {
			t.Errorf("waited %s for a scan an hour later", time.Since(begin))
		}
		begin = time.Now()
		time.AfterFunc(time.Minute, s.Request)
		if !s.await(t.Context(), begin.Add(time.Hour)) || time.Since(begin) != time.Minute {
			t.Errorf("waited %s for a scan asked for after a minute", time.Since(begin))
		}
		p := pass{Scanner: s, urgent: true}
		s.wanted = false
		work := func(after time.Duration) (time.Duration, error) {
			begin := time.Now()
			time.AfterFunc(after, s.Request)
			err := p.pauseFor(t.Context(), time.Second)
			return time.Since(begin), err
		}
		if took, err := work(100 * time.Millisecond); err != nil || took != time.Second {
			t.Errorf("an urgent scan's pause: %v after %s", err, took)
		}
		if !s.await(t.Context(), time.Now().Add(time.Hour)) || !s.requested() {
			t.Error("no other scan follows an urgent one")
		}
		p.urgent, s.wanted = false, false
		if took, err := work(100 * time.Millisecond); !errors.Is(err, errOvertaken) || took != 100*time.Millisecond {
			t.Errorf("another scan's pause: %v after %s", err, took)
		}
	})
}

// A map that cannot be read is tried again, and both is said once.
func TestScanFailures(t *testing.T) {
	var out strings.Builder
	m := openMap(t, newKernelMap(t, hashSpec(testKey, testValue, 10)), Options{})
	s, err := NewScanner(newTable(t, table.Options{}), m, ScannerOptions{Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	fd := m.m
	defer func() { m.m = fd }()
	m.m = newKernelMap(t, &ebpf.MapSpec{Type: ebpf.Queue, ValueSize: 4, MaxEntries: 1}) // which has no iterator
	s.Request()
	for range 3 {
		err := s.scan(t.Context(), time.Now())
		if err == nil {
			t.Fatal("a map that is none was scanned")
		}
		s.failed(err)
		if !s.requested() {
			t.Error("the urgent scan is forgotten")
		}
	}
	s.note(true)
	st := s.Stats()
	if log := out.String(); st.Failures != 3 || st.Scans != 0 || strings.Count(log, "a scan failed") != 1 || strings.Count(log, "scans work again") != 1 {
		t.Errorf("%+v\n%s", st, log)
	}
}

func TestScannerWantsEqualSizes(t *testing.T) {
	_, err := NewScanner(newTable(t, table.Options{}), &Map{info: Info{Name: "m", KeySize: 1, ValueSize: 2}}, ScannerOptions{})
	if err == nil || !strings.Contains(err.Error(), "sizes differ") {
		t.Error(err)
	}
}
