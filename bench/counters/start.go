package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"mapsync/docs/examples/counters"
	"mapsync/internal/tool"
	"mapsync/syncd/capture"
	"mapsync/syncd/daemon"
)

// hooksAttached is the log message of syncd once its hooks are attached.
const hooksAttached = `msg="capture opened"`

// measureStart measures the time until the hooks of syncd are attached, and its memory.
func (b *bench) measureStart(ctx context.Context) (figures string, unmet, err error) {
	pin := filepath.Join(b.pins, counters.MapName)
	if err := createMap(pin); err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(pin)) }()
	times, err := b.startTimes(ctx, pin)
	if err != nil {
		return "", nil, err
	}
	small, err := b.memory(ctx, pin, "")
	if err != nil {
		return "", nil, err
	}
	large, err := b.memory(ctx, pin, strconv.Itoa(capture.DefaultRingBytes))
	if err != nil {
		return "", nil, err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "MEMORY OF SYNCD, MB\tRESIDENT\tANONYMOUS\tFILES AND RING")
	fmt.Fprintf(w, "ring of 1 MiB, as in the example\t%.1f\t%.1f\t%.1f\n", small.resident, small.anonymous, small.file)
	fmt.Fprintf(w, "ring of %d MiB, the default\t%.1f\t%.1f\t%.1f\n", capture.DefaultRingBytes>>20, large.resident, large.anonymous, large.file)
	middle, longest := tool.Median(times), slices.Max(times)
	if limit := b.startLimit.Seconds(); limit > 0 && longest > limit {
		unmet = fmt.Errorf("the longest start took %.2f s, want at most %.2f s", longest, limit)
	}
	if b.memoryLimit > 0 && small.resident > b.memoryLimit {
		unmet = errors.Join(unmet, fmt.Errorf("syncd has %.1f MB of resident memory, want at most %.1f MB", small.resident, b.memoryLimit))
	}
	figures = fmt.Sprintf("starts=%d start_ms=%.0f start_max_ms=%.0f resident_mb=%.1f resident_default_ring_mb=%.1f",
		len(times), 1000*middle, 1000*longest, small.resident, large.resident)
	return figures, unmet, w.Flush()
}

// startTimes returns the seconds from the start of the process until its hooks are attached.
func (b *bench) startTimes(ctx context.Context, pin string) (times []float64, err error) {
	n, err := newNode(b.dir, 1, pin, b.attach, nil)
	if err != nil {
		return nil, err
	}
	for i := range b.starts {
		if i%10 == 0 {
			tool.Progress("start %d of %d", i+1, b.starts)
		}
		began := time.Now()
		p, err := startProgram(hooksAttached, b.syncd, append([]string{"run"}, n.args...)...)
		if err != nil {
			return nil, err
		}
		err = p.await(ctx)
		times = append(times, time.Since(began).Seconds())
		if err := errors.Join(err, p.stop()); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// memory is the resident memory of a process in MB (1,000,000 bytes).
type memory struct {
	resident  float64
	anonymous float64 // heap and stacks
	file      float64 // program, and the ring, which is mapped twice
}

// memory measures an idle syncd, with a ring of that size; empty: that of the example.
func (b *bench) memory(ctx context.Context, pin, ring string) (m memory, err error) {
	n, err := newNode(b.dir, 1, pin, b.attach, nil)
	if err != nil {
		return m, err
	}
	if ring != "" {
		n.args = append(n.args, "--buffer-size", ring)
	}
	p, err := startProgram(hooksAttached, b.syncd, append([]string{"run"}, n.args...)...)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := n.await(ctx, "readiness", func(s *daemon.Status) bool { return s.Ready }); err != nil {
		return m, err
	}
	if err := tool.Pause(ctx, b.rest); err != nil {
		return m, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return m, fmt.Errorf("read the memory of syncd: %w", err)
	}
	for name, to := range map[string]*float64{"VmRSS": &m.resident, "RssAnon": &m.anonymous} {
		if *to, err = field(text, name); err != nil {
			return m, err
		}
	}
	m.file = m.resident - m.anonymous
	return m, nil
}

// field returns a line of /proc/PID/status in MB.
func field(text []byte, name string) (float64, error) {
	found := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB$`).FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("read the memory of syncd: the kernel does not report %s", name)
	}
	n, err := strconv.ParseFloat(string(found[1]), 64)
	return n * 1024 / 1e6, err
}
