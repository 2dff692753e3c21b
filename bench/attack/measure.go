package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// sample is what a daemon uses at one moment.
type sample struct {
	rss         uint64 // resident memory, bytes
	descriptors int
	log         int64 // bytes
}

// sample reads what the daemon uses from /proc.
func (n *node) sample() (sample, error) {
	var s sample
	proc := filepath.Join("/proc", strconv.Itoa(n.cmd.Process.Pid))
	text, err := os.ReadFile(filepath.Join(proc, "statm"))
	if err != nil {
		return s, fmt.Errorf("measure %s: %w", n.name, err)
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return s, fmt.Errorf("measure %s: statm is %q", n.name, text)
	}
	pages, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return s, fmt.Errorf("measure %s: %w", n.name, err)
	}
	s.rss = pages * uint64(os.Getpagesize())
	open, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return s, fmt.Errorf("measure %s: %w", n.name, err)
	}
	s.descriptors = len(open)
	info, err := os.Stat(n.logFile)
	if err != nil {
		return s, fmt.Errorf("measure %s: %w", n.name, err)
	}
	s.log = info.Size()
	return s, nil
}

// metrics scrapes the daemon's counters and gauges, by name and labels.
func (n *node) metrics() (map[string]float64, error) {
	response, err := n.http.Get("http://" + n.addr + ":" + metricsPort + "/metrics")
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", n.name, err)
	}
	defer response.Body.Close()
	return parseMetrics(response.Body)
}

func parseMetrics(r io.Reader) (map[string]float64, error) {
	values := make(map[string]float64)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("read metric %q: %w", line, err)
		}
		values[line[:at]] = v
	}
	return values, lines.Err()
}

// watch is what was seen of the daemons while an attack ran.
type watch struct {
	mu      sync.Mutex
	memory  uint64        // the most above idle, bytes
	open    int           // the most descriptors
	slowest time.Duration // answer to an operator
	errs    map[string]error
}

func (w *watch) fail(err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) < 16 {
		w.errs[err.Error()] = err
	}
}

// follow watches every daemon until the context ends. spared is not asked whether it is
// ready: the attack restarts it.
func (c *cluster) follow(ctx context.Context, spared *node) (w *watch, wait func()) {
	w = &watch{errs: make(map[string]error)}
	var wg sync.WaitGroup
	for _, n := range c.nodes {
		wg.Go(func() { n.weigh(ctx, w) })
		if n != spared {
			wg.Go(func() { n.interview(ctx, w) })
		}
	}
	return w, wg.Wait
}

// weigh takes samples.
func (n *node) weigh(ctx context.Context, w *watch) {
	for sleep(ctx, 50*time.Millisecond) {
		s, err := n.sample()
		if err != nil {
			continue // it restarts, or has died, which the interview finds
		}
		w.mu.Lock()
		if s.rss > n.idle.rss {
			w.memory = max(w.memory, s.rss-n.idle.rss)
		}
		w.open = max(w.open, s.descriptors)
		w.mu.Unlock()
	}
}

// interview asks what operators and load balancers ask, and looks whether the map holds what
// the load balancers wrote: they write nothing during an attack.
func (n *node) interview(ctx context.Context, w *watch) {
	for sleep(ctx, 500*time.Millisecond) {
		begun := time.Now()
		s, err := n.status(context.WithoutCancel(ctx))
		if err == nil && !s.Ready {
			err = fmt.Errorf("%s is not ready: %s", n.name, strings.Join(s.NotReady, "; "))
		}
		w.fail(err)
		w.fail(n.readyz())
		took := time.Since(begun)
		w.fail(n.holds(n.c.nodes))
		w.mu.Lock()
		w.slowest = max(w.slowest, took)
		w.mu.Unlock()
	}
}

// joined returns the errors in one.
func (w *watch) joined() error {
	var errs []error
	for _, err := range w.errs {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
