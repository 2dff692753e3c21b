package server

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Main runs the server with command line arguments until SIGTERM or SIGINT.
func Main(args []string) error {
	c := Config{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flags := flag.NewFlagSet("turn", flag.ContinueOnError)
	listen := flags.String("listen", "", "IPv4 `address` and port for clients, on both servers of a pair")
	secret := flags.String("secret-file", "", "`file` with the secret from which passwords are derived")
	flags.StringVar(&c.Interface, "interface", "", "network interface of the offload; empty: no offload")
	flags.StringVar(&c.PinDir, "pin-dir", "/sys/fs/bpf/turn", "`directory` in a BPF file system for the maps")
	flags.StringVar(&c.Realm, "realm", "example.org", "realm of the users")
	flags.BoolVar(&c.Standby, "standby", false, "do not rebuild allocations before SIGUSR1 or a client's first datagram")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	var err error
	if c.Listen, err = netip.ParseAddrPort(*listen); err != nil {
		return fmt.Errorf("read -listen: %w", err)
	}
	text, err := os.ReadFile(*secret)
	if err != nil {
		return fmt.Errorf("read -secret-file: %w", err)
	}
	if c.Secret = bytes.TrimSpace(text); len(c.Secret) == 0 {
		return fmt.Errorf("read -secret-file: %s is empty", *secret)
	}
	return run(&c)
}

func run(c *Config) (err error) {
	activate := make(chan os.Signal, 1)
	signal.Notify(activate, syscall.SIGUSR1)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	s, err := Start(c)
	if err != nil {
		return err
	}
	var sweep sync.WaitGroup
	defer func() {
		stop()
		sweep.Wait()
		err = errors.Join(err, s.Close())
	}()
	c.Logger.Info("started", "listen", c.Listen, "interface", c.Interface, "standby", c.Standby)
	sweep.Go(func() { s.Sweep(ctx) })
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-activate:
			if err := s.Activate(); err != nil {
				return fmt.Errorf("activate: %w", err)
			}
		}
	}
}
