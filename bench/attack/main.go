// Attack runs three real syncd daemons and attacks them with these kinds of access: no credentials, a local user of the same host,
// the gossip key alone, a certificate without membership, and a malicious member. Each attack has a
// limit on time and load. During and after each attack the daemons must stay within their limits of
// memory, log and descriptors. They must stay ready and continue to replicate.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// options holds the values of the command line flags.
type options struct {
	syncd  string // path of the program; empty: built from the source tree
	only   string // regular expression that matches the names of the attacks to run
	json   string // file for the report
	list   bool
	keep   bool // keeps the daemons' directory
	length time.Duration
}

func main() {
	if orders := os.Getenv(localUserVariable); orders != "" {
		if err := runLocalUser(orders); err != nil {
			fmt.Fprintln(os.Stderr, "attack as a local user:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.syncd, "syncd", "", "`path` of the syncd to attack; by default it is built first")
	flag.StringVar(&o.only, "run", "", "run only the attacks whose names match this regular expression")
	flag.StringVar(&o.json, "json", "", "write the report to this `file`, as JSON")
	flag.BoolVar(&o.list, "list", false, "list the attacks and exit")
	flag.BoolVar(&o.keep, "keep", false, "keep the directory with logs and settings")
	flag.DurationVar(&o.length, "length", 10*time.Second, "time for each attack that does not end by itself")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

// errFailed is returned when at least one attack did harm. The report lists the harm.
var errFailed = errors.New("at least one attack did harm")

// run attacks a new cluster and prints the report to out.
func run(ctx context.Context, o options, out io.Writer) (err error) {
	chosen, err := choose(o.only)
	if err != nil {
		return err
	}
	if o.list {
		return list(out, chosen)
	}
	dir, err := os.MkdirTemp("", "attack")
	if err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	if o.keep {
		fmt.Fprintln(out, "logs and settings are in", dir)
	} else {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if o.syncd == "" {
		if o.syncd, err = build(ctx, dir); err != nil {
			return err
		}
	}
	first := filepath.Join(dir, "first")
	if err := os.Mkdir(first, 0o700); err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	c, err := newCluster(ctx, o.syncd, first)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	r := report{Nodes: len(c.nodes)}
	if err := r.attackAll(ctx, c, chosen, o.length, out); err != nil {
		return err
	}
	if o.json != "" {
		if err := r.write(o.json); err != nil {
			return err
		}
	}
	if r.Failed > 0 {
		return errFailed
	}
	return nil
}

// attackAll performs attacks on a cluster one after the other, each for a time, and prints the results to out.
func (r *report) attackAll(ctx context.Context, c *cluster, attacks []attack, length time.Duration, out io.Writer) error {
	r.header(out)
	for i := range attacks {
		result := c.perform(ctx, &attacks[i], length)
		r.Results = append(r.Results, result)
		result.row(out)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if len(c.nodes) == 0 {
			return errors.New("the daemons could not be started again after an attack")
		}
	}
	r.summary(out)
	return nil
}

// choose returns the attacks whose names match the expression.
func choose(expression string) ([]attack, error) {
	match, err := regexp.Compile(expression)
	if err != nil {
		return nil, fmt.Errorf("read the expression of -run: %w", err)
	}
	var chosen []attack
	for _, a := range attacks() {
		if match.MatchString(a.name) {
			chosen = append(chosen, a)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("choose attacks: no name matches %q", expression)
	}
	return chosen, nil
}

// build compiles syncd into dir, an absolute path, and returns the path of the binary. It uses the source
// tree of the working directory and the versions of the product's own go.mod.
func build(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "syncd")
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "mapsync").Output()
	if err != nil {
		return "", fmt.Errorf("find the source tree of syncd: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "./syncd")
	cmd.Dir = strings.TrimSpace(string(root))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build syncd: %w: %s", err, out)
	}
	return path, nil
}

// prepare raises the limits that this process needs.
func prepare() error {
	// Kernels before 5.11 charge BPF memory to this limit.
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("raise the limit of locked memory: %w", err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}
