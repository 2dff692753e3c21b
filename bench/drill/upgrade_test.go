package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/spf13/pflag"

	"mapsync/bench/lb"
	"mapsync/bench/lb/bpf"
	"mapsync/internal/poll"
	"mapsync/syncd/config"
	syncd "mapsync/syncd/daemon"
	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"
)

// syncdVariable makes this binary the syncd of the drill's nodes. Therefore a machine needs only
// the test binary.
const syncdVariable = "MAPSYNC_DRILL_SYNCD"

// thisVersion is the version that this binary reports as syncd.
const thisVersion = "drill"

// runSyncd implements the two commands of syncd that the drill uses: `run --config FILE` and
// `status --json --control-socket PATH`.
func runSyncd(args []string) error {
	ctx := context.Background()
	if args[0] == "run" {
		c, err := config.Load(args[2], pflag.NewFlagSet("syncd", pflag.ContinueOnError))
		if err != nil {
			return err
		}
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		d, err := syncd.New(syncd.Options{Config: c, Version: thisVersion, Logger: log.With("node", c.NodeName)})
		if err != nil {
			return err
		}
		return d.Run(ctx)
	}
	s, err := syncd.NewClient(args[3]).Status(ctx)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
		return err
	}
	if !s.Ready {
		return errors.New("not ready")
	}
	return nil
}

// TestRollingUpgrade runs the load balancer's next release, with another entry layout, on half of a
// cluster. All sessions survive the death of either half.
func TestRollingUpgrade(t *testing.T) {
	program := needSyncd(t)
	const sessions = 200
	for _, c := range []struct {
		attach  string
		layouts [2]lb.Layout
	}{
		{"kprobe", [2]lb.Layout{lb.LayoutV1, lb.LayoutNext}},
		{"fexit", [2]lb.Layout{lb.LayoutNext, lb.LayoutV1}},
	} {
		t.Run(fmt.Sprintf("%s to %s/%s/ring", c.layouts[active], c.layouts[standby], c.attach), func(t *testing.T) {
			result := perform(t, Options{
				Sessions: sessions, Syncd: program, Attach: c.attach, Layouts: c.layouts, SkipControl: true,
				BeforeCut: func(active, standby string) error { awaitEqual(t, c.layouts, active, standby); return nil },
			})
			if r := result.Real; r.Survived != sessions || r.Standby != (EntryCounts{Entries: 2 * sessions}) {
				t.Errorf("rolling upgrade: got %+v, want all sessions to survive", r)
			}
		})
	}
}

// convergeLimit is the longest time until the standby holds the entries of the active load
// balancer.
const convergeLimit = 10 * time.Second

func awaitEqual(t *testing.T, layouts [2]lb.Layout, pins ...string) {
	t.Helper()
	poll.Succeeds(t, convergeLimit, "the standby holds the entries", func() error {
		// The standby's map is read first: changes during the reads can only put the active one
		// ahead.
		there, err := readEntries(pins[standby], layouts[standby])
		if err != nil {
			return err
		}
		here, err := readEntries(pins[active], layouts[active])
		if err != nil {
			return err
		}
		return compare(here, there, uint64(monotonic()))
	})
}

func readEntries(pin string, layout lb.Layout) (all map[bpf.LBCtKey]lb.Entry, err error) {
	m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	all = make(map[bpf.LBCtKey]lb.Entry)
	return all, layout.ForEach(m, func(key *bpf.LBCtKey, e *lb.Entry) { all[*key] = *e })
}

// compare returns an error that describes how the standby's entries differ from those of the active
// load balancer.
func compare(here, there map[bpf.LBCtKey]lb.Entry, now uint64) error {
	if len(there) != len(here) {
		return fmt.Errorf("standby has %d of %d entries", len(there), len(here))
	}
	for key, a := range here {
		s, ok := there[key]
		if !ok {
			return fmt.Errorf("standby lacks %+v", key)
		}
		if stableFields(s) != stableFields(a) || s.Packets == 0 || s.Packets > a.Packets || s.Bytes == 0 || s.Bytes > a.Bytes {
			return fmt.Errorf("standby has %+v for %+v", s, a)
		}
		// Time stamps were converted to wall time and back to the same clock.
		const ms = uint64(time.Millisecond)
		if s.Created+100*ms < a.Created || s.Created > a.Created+100*ms || s.LastUsed+100*ms < s.Created || s.LastUsed > now+100*ms {
			return fmt.Errorf("standby has times %d, %d for %d, %d; now is %d", s.Created, s.LastUsed, a.Created, a.LastUsed, now)
		}
	}
	return nil
}

// stableFields returns the fields of an entry that do not change with every packet.
func stableFields(e lb.Entry) lb.Entry {
	e.LastUsed, e.Created, e.Packets, e.Bytes = 0, 0, 0, 0
	for i := range e.TCP {
		e.TCP[i].Seq, e.TCP[i].Ack, e.TCP[i].Window = 0, 0, 0
	}
	return e
}

// TestRollingUpgradeKeepsRoles checks the field roles that syncd reads. The nodes of a drill share
// one clock. Therefore a time stamp that is copied as a number is as correct as a converted one,
// and the values alone cannot show the difference.
func TestRollingUpgradeKeepsRoles(t *testing.T) {
	place, err := newWorkDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := place.remove(); err != nil {
			t.Error(err)
		}
	})
	for _, layout := range []lb.Layout{lb.LayoutV1, lb.LayoutNext} {
		pins, err := place.pins("roles", string(layout))
		if err != nil {
			t.Fatal(err)
		}
		balancer, err := lb.New(lb.Config{
			Service: lb.Service{VIP: service(), Backends: backends()}, Layout: layout, PinDir: pins, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := checkTimeRoles(balancer, layout, t.TempDir()); err != nil {
			t.Errorf("layout %s: %v", layout, err)
		}
		if err := balancer.Close(); err != nil {
			t.Error(err)
		}
	}
}

// checkTimeRoles checks the field roles that syncd reads with the drill's settings.
func checkTimeRoles(b *lb.Balancer, layout lb.Layout, dir string) error {
	settings, err := objectSchemas(b.Map(), layout, dir)
	if err != nil {
		return err
	}
	var types []*schema.Schema
	if settings != nil {
		types, err = schema.FromObject(strings.TrimPrefix(settings[0], lb.MapName+"="))
	} else {
		info, describeErr := kmap.Describe(b.Map())
		types = make([]*schema.Schema, 1)
		types[0], err = syncd.SchemaOf(lb.MapName, info)
		err = errors.Join(describeErr, err)
	}
	if err != nil {
		return err
	}
	for _, s := range types {
		if s.Map != lb.MapName {
			continue
		}
		if f := s.Value.Fields[0]; f.Name != "last_used" || f.Kind != schema.KindTime || f.Roles&schema.RoleVolatile == 0 {
			return fmt.Errorf("settings %q: first field is %+v", settings, f)
		}
		return nil
	}
	return fmt.Errorf("settings %q give the map no type", settings)
}
