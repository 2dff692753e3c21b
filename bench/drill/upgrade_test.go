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
	"mapsync/syncd/config"
	syncd "mapsync/syncd/daemon"
	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"
)

// syncdVariable makes this binary the syncd of the drill's nodes, so that a machine
// which gets the test alone has one.
const syncdVariable = "MAPSYNC_DRILL_SYNCD"

// runSyncd is what the drill uses of the program syncd: `run --config FILE` and
// `status --json --control-socket PATH`.
func runSyncd(args []string) error {
	ctx := context.Background()
	if args[0] == "run" {
		c, err := config.Load(args[2], pflag.NewFlagSet("syncd", pflag.ContinueOnError))
		if err != nil {
			return err
		}
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		d, err := syncd.New(syncd.Options{Config: c, Version: "drill", Logger: log.With("node", c.NodeName)})
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

// Half of a cluster runs the load balancer's next release, whose entries look
// different; whichever half dies, the other carries every session on.
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
				BeforeCut: func(active, standby string) error { return awaitSame(c.layouts, active, standby) },
			})
			if r := result.Real; r.Survived != sessions || r.Standby != (Census{Entries: 2 * sessions}) {
				t.Errorf("not every session survived: %+v", r)
			}
		})
	}
}

// sameWithin is how long the standby may take to hold what the active one holds.
const sameWithin = 10 * time.Second

func awaitSame(layouts [2]lb.Layout, pins ...string) error {
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		// The standby first: what goes on meanwhile, the active one is ahead with.
		there, err := readEntries(pins[standby], layouts[standby])
		if err != nil {
			return err
		}
		here, err := readEntries(pins[active], layouts[active])
		if err != nil {
			return err
		}
		err = compare(here, there, uint64(monotonic()))
		if err == nil || time.Since(begun) > sameWithin {
			return err
		}
	}
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

// compare says how the standby's entries are not those of the active one.
func compare(here, there map[bpf.LBCtKey]lb.Entry, now uint64) error {
	if len(there) != len(here) {
		return fmt.Errorf("standby has %d of %d entries", len(there), len(here))
	}
	for key, a := range here {
		s, ok := there[key]
		if !ok {
			return fmt.Errorf("standby lacks %+v", key)
		}
		if content(s) != content(a) || s.Packets == 0 || s.Packets > a.Packets || s.Bytes == 0 || s.Bytes > a.Bytes {
			return fmt.Errorf("standby has %+v for %+v", s, a)
		}
		// Time stamps went through wall clocks, and came back to the same clock.
		const ms = uint64(time.Millisecond)
		if s.Created+100*ms < a.Created || s.Created > a.Created+100*ms || s.LastUsed+100*ms < s.Created || s.LastUsed > now+100*ms {
			return fmt.Errorf("standby has times %d, %d for %d, %d; now is %d", s.Created, s.LastUsed, a.Created, a.LastUsed, now)
		}
	}
	return nil
}

// content is what of an entry does not change with every packet.
func content(e lb.Entry) lb.Entry {
	e.LastUsed, e.Created, e.Packets, e.Bytes = 0, 0, 0, 0
	for i := range e.TCP {
		e.TCP[i].Seq, e.TCP[i].Ack, e.TCP[i].Window = 0, 0, 0
	}
	return e
}

// The nodes of a drill share one clock: a time stamp that is copied as a number is as
// right as one that is converted. So this asks for the types.
func TestRollingUpgradeKeepsRoles(t *testing.T) {
	place, err := newWorkplace()
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
			VIP: service(), Backends: backends(), Layout: layout, PinDir: pins, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := timesAreKnown(balancer, layout, t.TempDir()); err != nil {
			t.Errorf("layout %s: %v", layout, err)
		}
		if err := balancer.Close(); err != nil {
			t.Error(err)
		}
	}
}

// timesAreKnown checks what syncd learns with the settings that the drill gives it.
func timesAreKnown(b *lb.Balancer, layout lb.Layout, dir string) error {
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
			return fmt.Errorf("settings %q make this of the first field: %+v", settings, f)
		}
		return nil
	}
	return fmt.Errorf("settings %q give the map no type", settings)
}
