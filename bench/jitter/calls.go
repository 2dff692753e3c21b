package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"mapsync/internal/tool"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// keySize and valueSize are the sizes of the map's entries in bytes.
const keySize, valueSize = 16, 16

// measureCalls runs syncd with a map, and measures its calls while it scans the map without end.
func measureCalls(ctx context.Context, entries int, window time.Duration) (m measurement, err error) {
	dir, err := os.MkdirTemp("", "jitter")
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return m, fmt.Errorf("mount a BPF filesystem: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir, 0)) }()
	path := filepath.Join(dir, "flows")
	if err := createMap(path, entries); err != nil {
		return m, err
	}
	state, err := os.MkdirTemp("", "jitter")
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	c := config.Default()
	c.NodeName, c.Maps, c.Insecure = "a", []string{path}, true
	c.Attach = string(capture.AttachNone)                   // hooks read no maps
	c.ScanInterval, c.ScanBudget = 100*time.Millisecond, 50 // the rest is for threads without real-time priority
	c.MetricsListen, c.StateDir, c.ControlSocket, c.PinDir = "", state, filepath.Join(state, "syncd.sock"), ""
	d, err := daemon.New(daemon.Options{Config: c, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return m, err
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- d.Run(running) }()
	defer func() { stop(); err = errors.Join(err, <-done) }()
	tool.Progress("waiting until syncd has read %d entries", entries)
	for client := daemon.NewClient(c.ControlSocket); ; {
		if r, err := client.Ready(ctx); err == nil && r.Ready {
			break
		}
		if err := tool.Pause(ctx, 100*time.Millisecond); err != nil {
			return m, err
		}
	}
	if err := tool.Pause(ctx, window); err != nil {
		return m, err
	}
	m.name = fmt.Sprintf("calls of syncd, %d entries", entries)
	before := calls()
	if err := tool.Pause(ctx, window); err != nil {
		return m, err
	}
	m.runs = calls() - before
	for kind, longest := range kmap.LongestCalls(window) {
		if longest > m.longest {
			m.longest, m.kind = longest, kmap.CallKind(kind).String()
		}
	}
	return m, nil
}

// calls returns the number of calls so far.
func calls() (n uint64) {
	for _, c := range kmap.Calls() {
		n += c.Count
	}
	return n
}

// createMap pins a hash map with entries.
func createMap(path string, entries int) (err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return err
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "flows", Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: uint32(entries)})
	if err != nil {
		return fmt.Errorf("create the map: %w", err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	const batch = 8192
	keys, values := make([][2]uint64, batch), make([][2]uint64, batch)
	for first := 0; first < entries; first += batch {
		n := min(batch, entries-first)
		for i := range n {
			keys[i], values[i] = [2]uint64{uint64(first + i)}, [2]uint64{1}
		}
		if _, err := m.BatchUpdate(keys[:n], values[:n], nil); err != nil {
			return fmt.Errorf("fill the map: %w", err)
		}
	}
	return m.Pin(path)
}
