package peers

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(patient{m}) }

// patient waits after the tests while goroutines remain. A probe of memberlist that is in progress at
// Shutdown ends with its own time limits.
type patient struct{ *testing.M }

func (p patient) Run() int {
	code := p.M.Run()
	for end := time.Now().Add(10 * time.Second); code == 0 && goleak.Find() != nil && time.Now().Before(end); {
	}
	return code
}

// logBuffer stores log lines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// count returns the number of lines that contain all parts.
func (b *logBuffer) count(parts ...string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for line := range strings.Lines(b.buf.String()) {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) }) {
			n++
		}
	}
	return n
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// node is a running cluster of a test.
type node struct {
	*Cluster
	logs *logBuffer
	// stop ends Run and returns its error.
	stop func() error
}

var incarnations atomic.Uint64

// start runs a node with the given name and options.
func start(t *testing.T, name string, change ...func(*Options)) *node {
	t.Helper()
	n := &node{logs: &logBuffer{}}
	opts := Options{
		NodeName:    name,
		Incarnation: incarnations.Add(1),
		BindAddr:    "127.0.0.1:0",
		ServiceAddr: name + ".example:7947",
		Profile:     ProfileLocal,
		Logger:      n.logs.logger(),
	}
	for _, f := range change {
		f(&opts)
	}
	var err error
	if n.Cluster, err = New(opts); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	n.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := n.stop(); err != nil {
			t.Errorf("node %s: Run: got %v, want nil", name, err)
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, n.logs)
		}
	})
	return n
}

// kill stops a node without a leave message.
func (n *node) kill(t *testing.T) {
	t.Helper()
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if err := n.stop(); err != nil {
		t.Error(err)
	}
}

// sees reports whether the members are exactly the given nodes, in any order.
func (n *node) sees(nodes ...*node) bool {
	members := n.Members()
	for _, other := range nodes {
		want := Member{
			Name: other.opts.NodeName, Incarnation: other.opts.Incarnation,
			ServiceAddr: other.opts.ServiceAddr, GossipAddr: other.GossipAddr(),
		}
		if !slices.Contains(members, want) {
			return false
		}
	}
	return len(members) == len(nodes)
}

func joining(nodes ...*node) func(*Options) {
	return func(o *Options) {
		for _, n := range nodes {
			o.Join = append(o.Join, n.GossipAddr())
		}
	}
}

func keys(keys ...string) func(*Options) {
	return func(o *Options) {
		for _, key := range keys {
			o.GossipKeys = append(o.GossipKeys, []byte(key))
		}
	}
}
