package trace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// The pins: syncd follows the flows. The others are in a folder of their own, and the pin of the flows is the last one,
// so that it means that the trace is complete.
const (
	flowsPin  = "flows"
	ownFolder = "tracer"
	linkPin   = "link_"
)

// pinned returns the maps of the own folder.
func (t *tracer) pinned() map[string]**ebpf.Map {
	return map[string]**ebpf.Map{"spare": &t.spare, "active": &t.active, "listeners": &t.listeners, "lost": &t.lost, "closed": &t.closed}
}

// pin makes the trace continue without this process.
func (t *tracer) pin(dir string) error {
	if err := removePins(dir); err != nil {
		return err
	}
	own := filepath.Join(dir, ownFolder)
	if err := os.MkdirAll(own, 0o700); err != nil {
		return fmt.Errorf("pin the trace: %w", err)
	}
	for name, m := range t.pinned() {
		if err := (*m).Pin(filepath.Join(own, name)); err != nil {
			return fmt.Errorf("pin map %s in %s (is it a BPF filesystem?): %w", name, own, err)
		}
	}
	for name, l := range t.links {
		if err := l.Pin(filepath.Join(own, linkPin+name)); err != nil {
			return fmt.Errorf("pin program %s (kprobes: kernels from 5.15): %w", name, err)
		}
	}
	if err := t.moveSpare.Pin(filepath.Join(own, "move_spare")); err != nil {
		return fmt.Errorf("pin program move_spare: %w", err)
	}
	if err := t.flows.Pin(filepath.Join(dir, flowsPin)); err != nil {
		return fmt.Errorf("pin map flows: %w", err)
	}
	return nil
}

// resume continues the trace in the pins. It returns nil if there is none.
func resume(o *options) (_ *tracer, err error) {
	t := &tracer{method: o.method, resumed: true, hooks: tracepoints, links: make(map[string]link.Link), connectionSums: newConnectionSums(o)}
	t.flows, err = ebpf.LoadPinnedMap(filepath.Join(o.pin, flowsPin), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open map flows: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("continue the trace in %s (-remove ends it): %w", o.pin, err), t.close())
		}
	}()
	own := filepath.Join(o.pin, ownFolder)
	for name, m := range t.pinned() {
		if *m, err = ebpf.LoadPinnedMap(filepath.Join(own, name), nil); err != nil {
			return nil, fmt.Errorf("open map %s: %w", name, err)
		}
	}
	if t.moveSpare, err = ebpf.LoadPinnedProgram(filepath.Join(own, "move_spare"), nil); err != nil {
		return nil, err
	}
	for name := range functions {
		if _, err := os.Stat(filepath.Join(own, linkPin+name)); err == nil {
			t.hooks = kprobes
		}
	}
	// The last process may have ended while programs wrote the spare map.
	return t, t.endDrain()
}

// removePins ends the trace in dir.
func removePins(dir string) error {
	if dir == "" {
		return errors.New("-remove needs -pin")
	}
	err := os.Remove(filepath.Join(dir, flowsPin))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err := errors.Join(err, os.RemoveAll(filepath.Join(dir, ownFolder))); err != nil {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}
