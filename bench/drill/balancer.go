package drill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cilium/ebpf"

	"mapsync/bench/lb"
)

// runBalancer runs the process of one load balancer, in its namespace.
func runBalancer(pipe *rolePipe, o *balancerConfig, logger *slog.Logger) (err error) {
	reports, err := openMaps(o.Reports)
	if err != nil {
		return err
	}
	balancer, err := lb.New(lb.Config{
		Reports: reports,
		Service: lb.Service{VIP: o.Service, Backends: o.Backends}, More: o.More, Layout: o.Layout, Name: o.Name,
		PinDir: o.PinDir, NewMap: o.NewMap, MaxEntries: o.MaxEntries,
		Established: o.Idle, CollectEvery: o.CollectEvery, Logger: logger,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, balancer.Close()) }()
	for _, m := range reports {
		if err := m.Close(); err != nil { // the program holds a copy
			return err
		}
	}
	id, err := idOf(balancer.Map())
	if err != nil {
		return err
	}
	if !o.AttachLater {
		if err := balancer.Attach(o.Interface, lb.Mode(o.Mode)); err != nil {
			return err
		}
	}
	pipe.send(report{Ready: true, MapID: id})
	ctx, stop := context.WithCancel(context.Background())
	obeyed := make(chan error, 1)
	go func() {
		defer stop()
		obeyed <- executeCommands(pipe, balancer, o)
	}()
	if err := balancer.Collect(ctx); err != nil {
		return err
	}
	return <-obeyed
}

// executeCommands executes the commands that a balancer receives after its start. It returns nil
// when the drill closes its end of the pipe: this process ends then.
func executeCommands(pipe *rolePipe, b *lb.Balancer, first *balancerConfig) error {
	for o := range pipe.commands {
		if o.Attach {
			if err := b.Attach(first.Interface, lb.Mode(first.Mode)); err != nil {
				return err
			}
			pipe.send(report{Ready: true})
		}
		if o.Count {
			stats, err := b.Stats()
			if err != nil {
				return err
			}
			pipe.send(report{Stats: &stats})
		}
	}
	return nil
}

// openMaps opens maps by their ids; nil for none.
func openMaps(ids map[string]uint32) (maps map[string]*ebpf.Map, err error) {
	for name, id := range ids {
		m, err := ebpf.NewMapFromID(ebpf.MapID(id))
		if err != nil {
			return nil, fmt.Errorf("open map %s of the capture: %w", name, err)
		}
		if maps == nil {
			maps = make(map[string]*ebpf.Map)
		}
		maps[name] = m
	}
	return maps, nil
}

func idOf(m *ebpf.Map) (uint32, error) {
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("describe map: %w", err)
	}
	id, known := info.ID()
	if !known {
		return 0, errors.New("describe map: the kernel does not return an id")
	}
	return uint32(id), nil
}
