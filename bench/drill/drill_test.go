package drill

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"mapsync/bench/lb"
	"mapsync/bench/lb/bpf"
)

func TestMain(m *testing.M) {
	if RunRole() {
		return
	}
	if os.Getenv(syncdVariable) != "" {
		if err := runSyncd(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "syncd:", err)
			os.Exit(1)
		}
		return
	}
	// Kernels before 5.11 charge BPF memory to this limit.
	if err := rlimit.RemoveMemlock(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// copyMap takes the role of syncd. It copies the entries for which keep returns true, as keep
// changed them.
func copyMap(from, to string, keep func(*bpf.LBCtKey, *bpf.LBCtValue) bool) (err error) {
	src, err := ebpf.LoadPinnedMap(from, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	dst, err := ebpf.LoadPinnedMap(to, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	var (
		key   bpf.LBCtKey
		value bpf.LBCtValue
	)
	entries := src.Iterate()
	for entries.Next(&key, &value) {
		if !keep(&key, &value) {
			continue
		}
		if err := dst.Put(key, value); err != nil {
			return err
		}
	}
	return entries.Err()
}

func perform(t *testing.T, opts Options) *Result {
	t.Helper()
	opts.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	result, err := Run(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// TestSurvivingSessionsAreCounted checks that every session survives with the complete state on the
// peer, and no session without it.
func TestSurvivingSessionsAreCounted(t *testing.T) {
	const sessions = 300
	result := perform(t, Options{
		Sessions: sessions, Hold: time.Second, Flow: 1,
		BeforeCut: func(active, standby string) error {
			return copyMap(active, standby, func(*bpf.LBCtKey, *bpf.LBCtValue) bool { return true })
		},
	})
	if err := result.Err(); err != nil {
		t.Error(err)
	}
	if c := result.Control; c.Survived != 0 || c.Reset != sessions {
		t.Errorf("control run: got %+v, want all reset", c)
	}
	if c := result.Real.Standby; c != (EntryCounts{Entries: 2 * sessions}) {
		t.Errorf("standby's map: got %+v, want two entries per session", c)
	}
	if r := result.Real; r.Survived != sessions || r.Exchanges < 3*sessions || r.MaxStallMS >= r.LimitMS {
		t.Errorf("run with syncd: got %+v, want all survived", r)
	}
}

// TestLostSessionsAreCounted checks that missing or wrong entries break only the sessions that they
// belong to.
func TestLostSessionsAreCounted(t *testing.T) {
	const sessions = 120
	// The client's port identifies a session in both directions.
	port := func(k *bpf.LBCtKey, v *bpf.LBCtValue) uint16 {
		net := k.Sport
		if v.Direction == 1 {
			net = k.Dport
		}
		return net<<8 | net>>8
	}
	for name, c := range map[string]struct {
		stalled bool
		keep    func(*bpf.LBCtKey, *bpf.LBCtValue) bool
	}{
		"entries missing": {keep: func(k *bpf.LBCtKey, v *bpf.LBCtValue) bool {
			return port(k, v)%3 != 0
		}},
		// The backend's reset has no entry and is not forwarded.
		"wrong backend": {stalled: true, keep: func(k *bpf.LBCtKey, v *bpf.LBCtValue) bool {
			if port(k, v)%3 == 0 && v.Direction == 0 {
				backend := byte(v.Nat.Daddr[0]>>24)%backendCount + 1
				v.Nat.Daddr[0] = v.Nat.Daddr[0]&0xffffff | uint32(backend)<<24
			}
			return true
		}},
		"replies missing": {stalled: true, keep: func(k *bpf.LBCtKey, v *bpf.LBCtValue) bool {
			return port(k, v)%3 != 0 || v.Direction == 0
		}},
	} {
		t.Run(name, func(t *testing.T) {
			lost := 0
			for i := range sessions {
				if (firstPort+i/len(sources(sessions)))%3 == 0 {
					lost++
				}
			}
			result := perform(t, Options{
				Sessions: sessions, Hold: time.Second, Flow: 1, StallTimeout: 10 * time.Second, SkipControl: true,
				BeforeCut: func(active, standby string) error { return copyMap(active, standby, c.keep) },
			})
			r := result.Real
			got := r.Reset
			if c.stalled {
				got = r.Stalled
			}
			if r.Survived != sessions-lost || got != lost {
				t.Errorf("run with incomplete state: want %d lost, got %+v", lost, r)
			}
			if result.Err() == nil {
				t.Error("result without control run and with losses: got no error, want one")
			}
		})
	}
}

// TestCleansUp checks that the drill removes its files and mounts.
func TestCleansUp(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	failure := errors.New("cut refused by the test")
	_, err := Run(t.Context(), Options{
		Sessions: 10, SkipControl: true, Logger: slog.New(slog.DiscardHandler),
		BeforeCut: func(string, string) error { return failure },
	})
	if !errors.Is(err, failure) {
		t.Fatalf("Run with a refused cut: got error %v, want %v", err, failure)
	}
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil || len(left) != 0 {
		t.Errorf("files after the drill: got %v, %v, want none", left, err)
	}
}

func TestResult(t *testing.T) {
	r := Result{
		Kernel: "6.1", Attach: "kprobe", Layouts: [2]lb.Layout{lb.LayoutV1, lb.LayoutV1},
		Control: &Outcome{Sessions: 1000, Survived: 0, Reset: 1000},
		Real:    &Outcome{Sessions: 1000, Survived: 1000, MaxStallMS: 230},
	}
	const line = "drill: kernel=6.1 attach=kprobe sessions=1000 control_survived=0 survived=1000 reset=0 stalled=0 max_stall_ms=230"
	if got := r.Line(); got != line {
		t.Errorf("result line:\ngot  %s\nwant %s", got, line)
	}
	r.Layouts[standby] = lb.LayoutNext
	if got := r.Line(); got != line+" layouts=v1,next" {
		t.Errorf("line of different layouts: got %q, want layouts=v1,next at the end", got)
	}
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	r.Control.Survived = 101
	if r.Err() == nil {
		t.Error("control run that keeps more than a tenth of the sessions: got no error, want one")
	}
	r.Control.Survived, r.Real.Survived = 100, 999
	if r.Err() == nil {
		t.Error("run with a lost session: got no error, want one")
	}
}

func TestOptionsAreRefused(t *testing.T) {
	logger := slog.New(slog.DiscardHandler)
	t.Setenv("PATH", "")
	for _, o := range []Options{
		{Sessions: -1, Logger: logger},
		{Load: "wrk", Logger: logger},
		{Layouts: [2]lb.Layout{lb.LayoutV1, "v3"}, Logger: logger},
		{Load: LoadTcpkali, Logger: logger}, // neither is installed on an empty path
		{Load: LoadNetperf, Logger: logger},
		{Load: LoadNetperf, Sessions: maxNetperfSessions + 1, Logger: logger},
	} {
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("Run with %+v: got no error, want one", o)
		}
	}
}
