package drill

import (
	"context"
	"errors"
	"log/slog"

	"mapsync/bench/lb"
)

// runBalancer is the process of one load balancer, in its namespace.
func runBalancer(pipe *rolePipe, o *balancerOrder, logger *slog.Logger) (err error) {
	balancer, err := lb.New(lb.Config{
		VIP: o.Service, Backends: o.Backends, Layout: o.Layout,
		PinDir: o.PinDir, MaxEntries: o.MaxEntries, CollectEvery: o.CollectEvery, Logger: logger,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, balancer.Close()) }()
	if err := balancer.Attach(o.Interface, lb.Mode(o.Mode)); err != nil {
		return err
	}
	pipe.send(report{Ready: true})
	ctx, stop := context.WithCancel(context.Background())
	go func() { // ends with the drill's end of the pipe, as this process does
		for range pipe.orders { //nolint:revive // a balancer gets no second order
		}
		stop()
	}()
	return balancer.Collect(ctx)
}
