package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"mapsync/internal/vm/kernel"
)

// kernels lists the cached kernels and fetches missing ones on request.
func kernels(args []string) error {
	flags := flag.NewFlagSet("vmrun kernels", flag.ContinueOnError)
	fetch := flags.Bool("fetch", false, "fetch kernels that are not in the cache")
	refresh := flags.Bool("refresh", false, "fetch the newest version of each")
	verbose := flags.Bool("v", false, "verbose output")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	dir, err := kernel.DefaultDir()
	if err != nil {
		return err
	}
	store := kernel.NewStore(dir, newLogger(*verbose))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	names := flags.Args()
	if len(names) == 0 {
		names = kernel.Releases()
	}
	get := func(name string) (*kernel.Kernel, error) { return store.Cached(name) }
	switch {
	case *refresh:
		get = func(name string) (*kernel.Kernel, error) { return store.Refresh(ctx, name) }
	case *fetch:
		get = func(name string) (*kernel.Kernel, error) { return store.Get(ctx, name) }
	}
	return list(names, get)
}

func list(names []string, get func(string) (*kernel.Kernel, error)) error {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	rows := []string{"release\tversion\tpackages\tfetched\tdirectory"}
	var failures []error
	for _, name := range names {
		k, err := get(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			rows = append(rows, name+"\tnot fetched")
		case err != nil:
			failures = append(failures, fmt.Errorf("kernel %s: %w", name, err))
		default:
			rows = append(rows, strings.Join([]string{
				name, k.Version, strings.Join(k.Packages, " "), k.Fetched.Format("2006-01-02"), k.Dir,
			}, "\t"))
		}
	}
	_, err := fmt.Fprintln(table, strings.Join(rows, "\n"))
	return errors.Join(append(failures, err, table.Flush())...)
}
