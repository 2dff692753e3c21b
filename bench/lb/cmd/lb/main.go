// Command lb runs the load balancer under test on one interface until it receives SIGTERM or
// SIGINT.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"mapsync/bench/lb"
)

func main() {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:], logger); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			logger.Error("load balancer failed", "error", err)
		}
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func run(ctx context.Context, args []string, logger *slog.Logger) (err error) {
	cfg := lb.Config{Logger: logger}
	iface, mode, err := parse(args, &cfg)
	if err != nil {
		return err
	}
	balancer, err := lb.New(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, balancer.Close()) }()
	if err := balancer.Attach(iface, mode); err != nil {
		return err
	}
	if err := balancer.Collect(ctx); err != nil {
		return err
	}
	stats, err := balancer.Stats()
	if err != nil {
		return err
	}
	logger.Info("load balancer stopped", "stats", fmt.Sprintf("%+v", stats))
	return nil
}

func parse(args []string, cfg *lb.Config) (iface string, mode lb.Mode, err error) {
	fs := flag.NewFlagSet("lb", flag.ContinueOnError)
	var max uint
	fs.StringVar(&iface, "interface", "eth0", "interface to balance on")
	fs.StringVar((*string)(&mode), "xdp", string(lb.ModeAuto), "where XDP runs: auto, native or generic")
	fs.TextVar(&cfg.VIP, "vip", netip.AddrPort{}, "service, ADDRESS:PORT")
	backends := fs.String("backends", "", "backends, ADDRESS:PORT,…")
	fs.StringVar((*string)(&cfg.Layout), "layout", string(lb.LayoutV1), "layout of ct_map: v1 or next")
	fs.StringVar(&cfg.PinDir, "pin-dir", "", "directory on a bpffs to pin ct_map in")
	fs.BoolVar(&cfg.NewMap, "new-map", false, "replace a pinned ct_map instead of reusing it")
	fs.UintVar(&max, "max-entries", 262144, "size of ct_map, two entries for each connection")
	fs.DurationVar(&cfg.Established, "idle-timeout", 0, "idle limit of an open connection (default 30m)")
	fs.DurationVar(&cfg.CollectEvery, "collect-every", 0, "pause between two passes of the collector (default 30s)")
	if err := fs.Parse(args); err != nil {
		return "", "", err
	}
	cfg.MaxEntries = uint32(max)
	for field := range strings.SplitSeq(*backends, ",") {
		backend, err := netip.ParseAddrPort(field)
		if err != nil {
			return "", "", fmt.Errorf("parse backends: %w", err)
		}
		cfg.Backends = append(cfg.Backends, backend)
	}
	return iface, mode, nil
}
