package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"time"

	"mapsync/printable"
	"mapsync/syncd/capture"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// defaultSettings is the settings file that a bundle contains without --config, if it exists.
const defaultSettings = "/etc/mapsync/syncd.yaml"

func newSupportBundle() *cobra.Command {
	var c connection
	var file, settings string
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Write a file with what a report about syncd needs",
		Long: `Write a compressed archive for a report: versions, the settings file, the maps of this host, the
status and the events of all nodes. It has no private keys and no values of entries, but names and
addresses of nodes, and keys of entries that are not replicated. Read it before you pass it on.
A part that is missing has the reason in its place.
Exit code 0: written and complete. 1: a part is missing. 2: wrong use.`,
		Example: `  syncd support-bundle --file lb1.tar.gz
  tar -xzOf lb1.tar.gz events.json | jq .`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				host, _ := os.Hostname() // "" is a usable part of a name
				file = fmt.Sprintf("syncd-%s-%s.tar.gz", host, time.Now().UTC().Format("20060102T150405Z"))
			}
			return writeBundle(cmd, &c, file, settings)
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "file", "", "`FILE` to write, which must not exist (default syncd-HOST-TIME.tar.gz)")
	f.StringVar(&settings, "config", "", "settings `FILE` (default "+defaultSettings+", if it exists)")
	_ = cmd.MarkFlagFilename("file", "gz") // fails for an unknown flag only
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	c.bind(cmd)
	return cmd
}

// bundlePart is a file in a bundle.
type bundlePart struct {
	name string
	read func(ctx context.Context) ([]byte, error)
}

// asJSON returns a function that reads a part of a bundle as JSON.
func asJSON[T any](read func(ctx context.Context) (T, error)) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		v, err := read(ctx)
		if err != nil {
			return nil, err
		}
		return json.MarshalIndent(v, "", "  ")
	}
}

// bundleParts returns the parts of a bundle.
func bundleParts(c *connection, settings string) []bundlePart {
	client := c.client()
	return []bundlePart{
		{"version.txt", func(context.Context) ([]byte, error) { return versions() }},
		{"syncd.yaml", func(context.Context) ([]byte, error) { return readSettings(settings) }},
		{"maps.json", asJSON(func(ctx context.Context) ([]hostMap, error) {
			hooks := capture.Probe(capture.AttachAuto)[0]
			return listMaps(ctx, &hooks)
		})},
		{"status.json", asJSON(client.ClusterStatus)},
		{"events.json", asJSON(func(ctx context.Context) (any, error) {
			return client.ClusterEvents(ctx, time.Time{}, 10_000)
		})},
	}
}

// versions returns the versions of syncd, of Go and of the kernel, and the time.
func versions() ([]byte, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("read the version of the kernel: %w", err)
	}
	text := func(b []byte) string { b, _, _ = bytes.Cut(b, []byte{0}); return string(b) }
	return fmt.Appendf(nil, "syncd %s\n%s %s/%s\nkernel %s %s %s\n%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH,
		text(u.Release[:]), text(u.Version[:]), text(u.Machine[:]), time.Now().UTC().Format(time.RFC3339)), nil
}

// readSettings reads the settings file. Without a name, it reads the default one, which need not exist.
func readSettings(name string) ([]byte, error) {
	if name != "" {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", name, causeOf(err))
		}
		return data, nil
	}
	data, err := os.ReadFile(defaultSettings)
	if errors.Is(err, fs.ErrNotExist) {
		return []byte("# " + defaultSettings + " does not exist\n"), nil
	}
	return data, err
}

// causeOf returns the error of a file operation without the name of the file.
func causeOf(err error) error {
	if of := (*fs.PathError)(nil); errors.As(err, &of) {
		return of.Err
	}
	return err
}

// writeBundle writes the parts to a new file. A part that cannot be read is a text with the reason.
func writeBundle(cmd *cobra.Command, c *connection, name, settings string) (err error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return usageError{fmt.Errorf("create %q: %w", name, causeOf(err))}
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	compressed := gzip.NewWriter(f)
	archive := tar.NewWriter(compressed)
	var missing []error
	for _, part := range bundleParts(c, settings) {
		fmt.Fprintf(cmd.ErrOrStderr(), "reading %s\n", part.name)
		data, err := part.read(cmd.Context())
		if err != nil {
			missing = append(missing, fmt.Errorf("%s: %w", part.name, err))
			part.name, data = part.name+".missing", []byte(err.Error()+"\n")
		}
		header := &tar.Header{Name: part.name, Mode: 0o600, Size: int64(len(data)), ModTime: time.Now()}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("write %q: %w", name, causeOf(err))
		}
		if _, err := archive.Write(data); err != nil {
			return fmt.Errorf("write %q: %w", name, causeOf(err))
		}
	}
	if err := errors.Join(archive.Close(), compressed.Close()); err != nil {
		return fmt.Errorf("write %q: %w", name, causeOf(err))
	}
	fmt.Fprintln(cmd.OutOrStdout(), printable.Text(name))
	return errors.Join(missing...)
}
