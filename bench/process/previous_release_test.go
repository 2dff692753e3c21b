package process

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"mapsync/internal/poll"
	"mapsync/internal/previous"
	"mapsync/syncd/daemon"
)

// TestPreviousRelease upgrades two nodes from the previous release to this one, one after the other,
// and then returns one of them to the previous release. The data planes of both nodes write and
// delete entries meanwhile. In each phase both nodes hold the same entries, the digests agree, and
// `syncd diff` of both releases finds no difference. Each restart keeps the state directory: entries
// that were deleted while syncd was stopped stay deleted.
func TestPreviousRelease(t *testing.T) {
	before, now := previous.Program(t), previous.CurrentProgram(t)
	c := newMixedCluster(t)
	c.start(0, before)
	c.start(1, before)
	c.phase("both nodes of the previous release")
	c.restart(0, now)
	c.phase("first node upgraded")
	c.checkNames(1, 0)
	c.restart(1, now)
	c.phase("both nodes upgraded")
	c.restart(0, before)
	c.phase("first node returned to the previous release")
}

// mixedCluster is two nodes and the entries that their data planes wrote.
type mixedCluster struct {
	t     *testing.T
	nodes [2]*Syncd
	maps  [2]*ebpf.Map

	// mu guards want and next, and is held while a kernel map changes.
	mu   sync.Mutex
	want map[string]string // content of both kernel maps
	next [2]uint64         // number of the next new key of a node
}

// mixedLimit is the longest time until two nodes converge.
const mixedLimit = 60 * time.Second

// loadTime is the time for which both data planes write in each phase.
const loadTime = 2 * time.Second

// newMixedCluster returns a cluster whose nodes are not started.
func newMixedCluster(t *testing.T) *mixedCluster {
	t.Helper()
	c := &mixedCluster{t: t, want: make(map[string]string)}
	c.must(rlimit.RemoveMemlock()) // before kernel 5.11
	for i := range c.nodes {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 16, ValueSize: 16, MaxEntries: 4096})
		c.must(err)
		c.maps[i] = m
		s, err := NewSyncd(i+1, "ct", m)
		c.must(err)
		c.nodes[i] = s
		s.Config.Join = []string{Address(1) + ":7946", Address(2) + ":7946"}
		s.Config.Attach, s.Config.ScanInterval, s.Config.ScanBudget = "none", 100*time.Millisecond, 20
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("log of %s:\n%s", s.Config.NodeName, s.ProgramLog())
			}
			if err := errors.Join(s.Close(), m.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	return c
}

func (c *mixedCluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *mixedCluster) start(i int, program string) {
	c.t.Helper()
	c.must(c.nodes[i].StartProgram(program))
}

// restart replaces syncd of a node. The data plane of the other node writes meanwhile. The data
// plane of the node deletes and creates entries while syncd is stopped.
func (c *mixedCluster) restart(i int, program string) {
	c.t.Helper()
	c.load(func() error {
		if err := c.nodes[i].StopProgram(); err != nil {
			return err
		}
		deleted, err := c.deleteSome(i)
		if err != nil || deleted == 0 {
			return errors.Join(err, fmt.Errorf("deleted %d entries while syncd was stopped, want some", deleted))
		}
		for range 10 {
			if err := c.create(i); err != nil {
				return err
			}
		}
		return c.nodes[i].StartProgram(program)
	}, 1-i)
}

// deleteSome deletes every third entry of a node's data plane, and returns their number.
func (c *mixedCluster) deleteSome(i int) (deleted int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := uint64(0); n < c.next[i]; n += 3 {
		key := mixedKey(i, n)
		if _, ok := c.want[string(key)]; !ok {
			continue
		}
		if err := c.maps[i].Delete(key); err != nil {
			return deleted, fmt.Errorf("delete entry: %w", err)
		}
		delete(c.want, string(key))
		deleted++
	}
	return deleted, nil
}

// mixedKey returns key number n of a node's data plane.
func mixedKey(i int, n uint64) []byte {
	key := make([]byte, 16)
	key[0] = byte(i + 1)
	binary.LittleEndian.PutUint64(key[8:], n)
	return key
}

// create adds an entry with a new key to the map of a node.
func (c *mixedCluster) create(i int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := mixedKey(i, c.next[i])
	c.next[i]++
	return c.put(i, key)
}

// put writes an entry with a new value to the map of a node. The caller holds c.mu.
func (c *mixedCluster) put(i int, key []byte) error {
	value := make([]byte, 16)
	binary.LittleEndian.PutUint64(value, rand.Uint64())
	if err := c.maps[i].Put(key, value); err != nil {
		return fmt.Errorf("write entry: %w", err)
	}
	c.want[string(key)] = string(value)
	return nil
}

// change creates, updates or deletes an entry of a node's data plane.
func (c *mixedCluster) change(i int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := rand.Uint64N(c.next[i] + 1)
	key := mixedKey(i, n)
	if n == c.next[i] && n < 1000 {
		c.next[i]++
	}
	if _, ok := c.want[string(key)]; ok && rand.IntN(3) == 0 {
		if err := c.maps[i].Delete(key); err != nil {
			return fmt.Errorf("delete entry: %w", err)
		}
		delete(c.want, string(key))
		return nil
	}
	if n >= c.next[i] {
		return nil
	}
	return c.put(i, key)
}

// load calls fn while the data planes of some nodes write.
func (c *mixedCluster) load(fn func() error, nodes ...int) {
	c.t.Helper()
	ctx, stop := context.WithCancel(c.t.Context())
	defer stop()
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for n, i := range nodes {
		wg.Go(func() {
			for ctx.Err() == nil && errs[n] == nil {
				errs[n] = c.change(i)
				time.Sleep(time.Millisecond) // the rate of the changes
			}
		})
	}
	err := fn()
	stop()
	wg.Wait()
	c.must(errors.Join(append(errs, err)...))
}

// phase writes for some time and checks that the cluster has converged then.
func (c *mixedCluster) phase(name string) {
	c.t.Helper()
	began := time.Now()
	c.load(func() error {
		for range 20 {
			if err := errors.Join(c.create(0), c.create(1)); err != nil {
				return err
			}
		}
		time.Sleep(loadTime) // the duration of the load
		return nil
	}, 0, 1)
	poll.Succeeds(c.t, mixedLimit, name, c.converged)
	for i, s := range c.nodes {
		out, err := s.Command(c.t.Context(), "diff", "ct")
		if err != nil {
			c.t.Fatalf("%s: differences at node %d: %v\n%s", name, i+1, err, out)
		}
	}
	c.t.Logf("%s: %d entries, converged after %v", name, len(c.want), time.Since(began).Round(time.Millisecond))
}

// converged returns an error unless both kernel maps have the expected entries, and both nodes are
// ready and in sync.
func (c *mixedCluster) converged() error {
	for i, s := range c.nodes {
		out, err := s.Command(c.t.Context(), "status", "--json")
		if err != nil {
			return err
		}
		var status daemon.Status
		if err := json.Unmarshal(out, &status); err != nil {
			return err
		}
		if err := inSync(&status); err != nil {
			return fmt.Errorf("node %d: %w", i+1, err)
		}
		if err := c.checkContent(i); err != nil {
			return err
		}
	}
	return nil
}

// inSync returns an error unless a node is ready, replicates with one peer and is in sync with it.
// Both releases use version 2 of the protocol.
func inSync(s *daemon.Status) error {
	if !s.Ready || len(s.Peers) != 1 || len(s.Peers[0].Maps) != 1 {
		return fmt.Errorf("%d peers, ready: %t %q", len(s.Peers), s.Ready, s.NotReady)
	}
	p := &s.Peers[0]
	if m := &p.Maps[0]; !p.Receiving || !p.Sending || !m.Agreed || m.Divergent > 0 || m.LagEntries > 0 {
		return fmt.Errorf("not in sync: %+v", p)
	}
	if p.ProtocolVersion != 2 {
		return fmt.Errorf("syncd %s reports protocol version %d, want 2", s.Version, p.ProtocolVersion)
	}
	return nil
}

// checkContent returns an error if a kernel map does not have the expected entries.
func (c *mixedCluster) checkContent(i int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var key, value []byte
	found := 0
	entries := c.maps[i].Iterate()
	for ; entries.Next(&key, &value); found++ {
		if want, ok := c.want[string(key)]; !ok || want != string(value) {
			return fmt.Errorf("map of node %d: entry %x is %x, want %x (exists: %t)", i+1, key, value, want, ok)
		}
	}
	if found != len(c.want) {
		return fmt.Errorf("map of node %d: got %d entries, want %d", i+1, found, len(c.want))
	}
	return entries.Err()
}

// checkNames checks that the metrics and flags of the old node's release exist at the new node, so
// that an upgrade breaks no dashboard and no script.
func (c *mixedCluster) checkNames(old, current int) {
	c.t.Helper()
	poll.Succeeds(c.t, mixedLimit, "metrics of the previous release", func() error {
		return missing(metricNames(c.t, c.nodes[old]), metricNames(c.t, c.nodes[current]))
	})
	was, is := flagNames(c.t, c.nodes[old]), flagNames(c.t, c.nodes[current])
	if err := missing(was, is); err != nil || len(was) < 50 {
		c.t.Errorf("flags of the previous release: got %d flags, %v, want at least 50 and all of them in this release", len(was), err)
	}
}

// missing returns an error that names the elements of was that is lacks.
func missing(was, is []string) error {
	was = slices.DeleteFunc(slices.Clone(was), func(name string) bool { return slices.Contains(is, name) })
	if len(was) > 0 {
		return fmt.Errorf("names of the previous release are missing: %q", was)
	}
	return nil
}

var (
	metricPattern  = regexp.MustCompile(`(?m)^# TYPE (mapsync_\w+)`)
	commandPattern = regexp.MustCompile(`(?m)^  ([a-z-]+) +[A-Z]`)
	flagPattern    = regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z-]+)`)
)

// metricNames returns the names of all metrics of a node.
func metricNames(t *testing.T, s *Syncd) []string {
	t.Helper()
	response, err := http.Get("http://" + s.Config.MetricsListen + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	names := submatches(metricPattern, text, "")
	if len(names) < 50 {
		t.Fatalf("metrics of %s: got %d, want at least 50", s.Config.NodeName, len(names))
	}
	return names
}

// flagNames returns each flag of each subcommand of a node's program, with the subcommand.
func flagNames(t *testing.T, s *Syncd) (names []string) {
	t.Helper()
	for _, command := range submatches(commandPattern, help(t, s), "") {
		names = append(names, submatches(flagPattern, help(t, s, command), command+" ")...)
	}
	return names
}

func help(t *testing.T, s *Syncd, command ...string) []byte {
	t.Helper()
	out, err := s.program.command(t.Context(), append(command, "--help")...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// submatches returns the first group of each match, after a prefix.
func submatches(pattern *regexp.Regexp, text []byte, prefix string) (all []string) {
	for _, m := range pattern.FindAllSubmatch(text, -1) {
		all = append(all, prefix+string(bytes.TrimSpace(m[1])))
	}
	return all
}
