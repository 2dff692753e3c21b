package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mapsync/bench/process"
	"mapsync/docs/examples/counters"
	"mapsync/internal/tool"
	"mapsync/syncd/daemon"
)

// node is a syncd with the settings of the example, except for its name, its addresses, its files and its map.
type node struct {
	name    string
	address string   // on loopback
	args    []string // of `syncd run`
	client  *daemon.Client
	launch  launcher
	stop    func() error // nil: it does not run
}

// launcher starts syncd with the arguments of `syncd run`. stop ends it as SIGTERM does.
type launcher func(args []string) (stop func() error, err error)

// scanInterval is shorter than in the example, so that a check takes less time.
const scanInterval = 500 * time.Millisecond

// newNode returns node number n (1, 2, ...), which is not started. The pin is that of its map.
func newNode(dir string, number int, pin, attach string, launch launcher) (*node, error) {
	state := filepath.Join(dir, fmt.Sprint("node", number))
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(state, "syncd.yaml")
	if err := os.WriteFile(file, counters.Settings, 0o600); err != nil {
		return nil, err
	}
	name, here, socket := fmt.Sprint("edge", number), process.Address(number), filepath.Join(state, "syncd.sock")
	return &node{
		name: name, address: here, client: daemon.NewClient(socket), launch: launch,
		args: []string{
			"--config", file, "--node-name", name, "--map", pin, "--attach", attach,
			"--scan-interval", scanInterval.String(), "--max-scan-interval", scanInterval.String(), "--scan-budget", "20",
			"--gossip-listen", here + ":7946", "--grpc-listen", here + ":7947", "--insecure", "--metrics-listen", here + ":9746",
			"--state-dir", state, "--control-socket", socket, "--pin-dir", "",
		},
	}, nil
}

// limit is the longest time until a node has done something, under emulation too.
const limit = time.Minute

// start starts the node and returns after its first scan. Before that, syncd does not count new entries: they may be
// older than syncd.
func (n *node) start(ctx context.Context) (err error) {
	if n.stop, err = n.launch(n.args); err != nil {
		return err
	}
	err = n.await(ctx, "the first scan", func(s *daemon.Status) bool {
		return s.Ready && len(s.Maps) == 1 && s.Maps[0].Scan != nil && s.Maps[0].Scan.Scans > 0
	})
	if err != nil {
		err = errors.Join(err, n.close())
	}
	return err
}

// await waits until the status of the node has a property.
func (n *node) await(ctx context.Context, what string, has func(*daemon.Status) bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		s, err := n.client.Status(ctx)
		if err == nil && has(&s) {
			return nil
		}
		if tool.Pause(ctx, 20*time.Millisecond) != nil {
			return errors.Join(fmt.Errorf("wait for %s of syncd: not within %s: ready %v, missing %q", what, limit, s.Ready, s.NotReady), err)
		}
	}
}

// close stops the node if it runs.
func (n *node) close() error {
	if n == nil || n.stop == nil {
		return nil
	}
	stop := n.stop
	n.stop = nil
	return stop()
}

// sample matches a series of the counter of bytes.
var sample = regexp.MustCompile(`(?m)^service_sent_bytes_total\{destination="([^"]*)",port="([^"]*)",source="([^"]*)"\} (\S+)$`)

// scrape returns the content of each series of the counter of bytes: the destinations, and other.
func (n *node) scrape(ctx context.Context) (series map[string]uint64, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.address+":9746/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	var text strings.Builder
	if _, err := bufio.NewReader(response.Body).WriteTo(&text); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	series = make(map[string]uint64)
	for _, m := range sample.FindAllStringSubmatch(text.String(), -1) {
		bytes, err := strconv.ParseFloat(m[4], 64)
		if err != nil {
			return nil, fmt.Errorf("read metrics: %w", err)
		}
		series[m[1]] += uint64(bytes)
	}
	if len(series) == 0 {
		return nil, fmt.Errorf("read metrics: %s has no service_sent_bytes_total", n.name)
	}
	return series, nil
}

// program is a running program. It ends with this process.
type program struct {
	name string
	cmd  *exec.Cmd
	text process.Tail  // end of its output
	seen chan struct{} // closed at the line that was waited for
	done chan error    // result of its exit
}

// startProgram starts a program. A line of its output with that text closes seen.
func startProgram(text, path string, args ...string) (*program, error) {
	p := &program{name: filepath.Base(path), cmd: exec.Command(path, args...), seen: make(chan struct{}), done: make(chan error, 1)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout = p.cmd.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		seen := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !seen && strings.Contains(lines.Text(), text) {
				seen = true
				close(p.seen)
			}
			_, _ = fmt.Fprintln(&p.text, lines.Text()) // a Tail never fails
		}
		p.done <- p.cmd.Wait()
	}()
	return p, nil
}

// await waits until the text is seen.
func (p *program) await(ctx context.Context) error {
	select {
	case <-p.seen:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case err := <-p.done:
		p.done <- err
		return fmt.Errorf("%s has ended: %w\n%s", p.name, err, p.text.String())
	case <-time.After(limit):
		return fmt.Errorf("wait for %s: not ready within %s\n%s", p.name, limit, p.text.String())
	}
}

// stop ends the program with SIGTERM.
func (p *program) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it fails only if the program has ended
	timer := time.AfterFunc(limit, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	if err := <-p.done; err != nil {
		return fmt.Errorf("stop %s: %w\n%s", p.name, err, p.text.String())
	}
	return nil
}

// startSyncd returns a launcher of that syncd program.
func startSyncd(path string) launcher {
	return func(args []string) (func() error, error) {
		p, err := startProgram(hooksAttached, path, append([]string{"run"}, args...)...)
		if err != nil {
			return nil, err
		}
		return p.stop, nil
	}
}
