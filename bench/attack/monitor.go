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

// sample is the resource use of a daemon at one moment.
type sample struct {
	rss         uint64 // resident memory, bytes
	descriptors int
	log         int64 // size of the log, bytes
}

// sample reads the daemon's resource use from /proc.
func (n *node) sample() (sample, error) {
	var s sample
	proc := filepath.Join("/proc", strconv.Itoa(n.process.Load().Pid))
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

// monitor collects the state of the daemons while an attack runs. mu protects all other fields.
type monitor struct {
	mu            sync.Mutex
	memory        uint64        // maximum above idle, bytes
	descriptors   int           // maximum count
	wrong         int           // maximum of wrong entries in one map
	slowestAnswer time.Duration // longest time to answer a status request
	errs          map[string]error
}

func (w *monitor) addError(err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.errs) < 16 {
		w.errs[err.Error()] = err
	}
}

// monitorAll monitors every daemon until the context ends. It skips the readiness check of
// restarting, because the attack restarts that daemon.
func (c *cluster) monitorAll(ctx context.Context, restarting *node) (w *monitor, wait func()) {
	w = &monitor{errs: make(map[string]error)}
	var wg sync.WaitGroup
	for _, n := range c.nodes {
		wg.Go(func() { n.sampleUsage(ctx, w) })
		wg.Go(func() { n.countWrong(ctx, w) })
		if n != restarting {
			wg.Go(func() { n.checkHealth(ctx, w) })
		}
	}
	return w, wg.Wait
}

// sampleUsage takes samples of the daemon's resource use every 50 ms until the context ends.
func (n *node) sampleUsage(ctx context.Context, w *monitor) {
	for sleep(ctx, 50*time.Millisecond) {
		s, err := n.sample()
		if err != nil {
			continue // the daemon restarts or has exited; checkHealth reports the latter
		}
		w.mu.Lock()
		if s.rss > n.idle.rss {
			w.memory = max(w.memory, s.rss-n.idle.rss)
		}
		w.descriptors = max(w.descriptors, s.descriptors)
		w.mu.Unlock()
	}
}

// countWrong reads the map every 50 ms until the context ends. The load balancers write nothing during an attack, so
// each entry of theirs that differs at any reading is wrong.
func (n *node) countWrong(ctx context.Context, w *monitor) {
	for sleep(ctx, 50*time.Millisecond) {
		wrong, err := n.wrongEntries(n.c.nodes)
		if err != nil {
			w.addError(err)
			return
		}
		w.mu.Lock()
		w.wrong = max(w.wrong, wrong)
		w.mu.Unlock()
	}
}

// checkHealth makes the requests of operators and load balancers. It also checks that the map holds
// the entries that the load balancers wrote: they write nothing during an attack.
func (n *node) checkHealth(ctx context.Context, w *monitor) {
	for sleep(ctx, 500*time.Millisecond) {
		begun := time.Now()
		s, err := n.status(context.WithoutCancel(ctx))
		took := time.Since(begun)
		if err == nil && !s.Ready {
			err = fmt.Errorf("%s is not ready: %s", n.name, strings.Join(s.NotReady, "; "))
		}
		w.addError(err)
		begun = time.Now()
		w.addError(n.readyz())
		took = max(took, time.Since(begun))
		w.addError(n.checkContent(n.c.nodes))
		w.mu.Lock()
		w.slowestAnswer = max(w.slowestAnswer, took)
		w.mu.Unlock()
	}
}

// err returns all errors, joined.
func (w *monitor) err() error {
	var errs []error
	for _, err := range w.errs {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
