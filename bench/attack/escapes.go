package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"mapsync/bench/hostile"
	"mapsync/internal/testcert"
	"mapsync/printable"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// escapeAttacks returns the attack on the terminals of operators.
func escapeAttacks() []attack {
	return []attack{{name: "member: terminal escapes in all texts", by: byMember, newDaemons: true, length: 20 * time.Second, trace: `u001b`, run: sendEscapes}}
}

// escape returns a text that sets the title and the colour of a terminal, reverses the direction, and begins a line. Its tag is printable.
func escape(tag string) string { return "x-" + tag + "\x1b]0;a\a\x1b[31m\u202e\x7f\r\nforged" }

// escapeTags are the tags of the texts that outputs and logs show, in a printable form.
var escapeTags = []string{"owner", "source", "refused", "reason", "device", "gossip", "subject", "observer", "hello", "release"}

// sendEscapes has a member, an observer, unknown clients and a holder of the gossip key send escapes in each text that they control. It
// reads the outputs of all commands that only read, and the logs, until its time has passed.
func sendEscapes(ctx context.Context, c *cluster) (err error) {
	restore, err := c.addDevices(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()
	s := &escapeSender{c: c, self: versionAt(0), counts: make(map[string]int)}
	m, err := c.join(ctx, attackers-1, hostile.Options{
		Name: mallory, Incarnation: s.self, Release: escape("release"), OnSubscribe: s.answer,
		Refuse: func(of, to string) string {
			if of != mapName || to != c.nodes[1].name {
				return ""
			}
			return escape("refused")
		},
	})
	if err != nil {
		return err
	}
	defer m.Close()
	var sending sync.WaitGroup
	defer sending.Wait()
	for _, send := range []func(context.Context) error{s.callAsObserver, s.callAsMember, s.connect, s.gossip} {
		sending.Go(func() {
			for sleep(ctx, 500*time.Millisecond) {
				if failed := send(ctx); failed != nil && ctx.Err() == nil {
					c.note("not sent: " + printable.Text(failed.Error()))
					return
				}
			}
		})
	}
	return c.readOutputs(ctx)
}

// escapeSender sends escapes. mu protects counts.
type escapeSender struct {
	c    *cluster
	self uint64

	mu     sync.Mutex
	counts map[string]int // of subscriptions, by map and daemon
}

// answer answers a subscription, each time with another text. The daemon ends the stream after most of them, and subscribes again.
func (s *escapeSender) answer(_ context.Context, o *hostile.OutboundMap) error {
	s.mu.Lock()
	i := s.counts[o.Map+o.To]
	s.counts[o.Map+o.To]++
	s.mu.Unlock()
	if o.Map == devicesName {
		dev := []string{"x-device-gone", "x-device\x1b[2J"}[i%2]
		return o.Batch([]*mapsyncv1.Incarnation{o.Self()}, []*mapsyncv1.Delta{deviceDelta(dev)}, true)
	}
	if o.To == s.c.nodes[1].name {
		return nil // the map is refused
	}
	switch i % 3 {
	case 0:
		return o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Sources{
			Sources: &mapsyncv1.Sources{Map: o.Index, Nodes: []string{escape("source")}},
		}})
	case 1:
		owners := []*mapsyncv1.Incarnation{{Node: escape("owner"), Number: 1}}
		return o.Batch(owners, []*mapsyncv1.Delta{updateDelta(entryKey(91, 1), 0, versionAt(0))}, true)
	}
	return o.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{
		Digest: &mapsyncv1.Digest{Map: o.Index, InconclusiveReason: escape("reason")},
	}})
}

// call opens a stream to each daemon with a certificate and a hello, subscribes to a map, and sends a report.
func (s *escapeSender) call(ctx context.Context, conf *tls.Config, hello *mapsyncv1.Hello, m *mapsyncv1.MapSubscription) error {
	limited, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, n := range s.c.nodes {
		conn, err := s.c.connect(n, conf, 0)
		if err != nil {
			return err
		}
		defer conn.Close()
		stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(limited)
		if err != nil {
			continue // refused, as expected
		}
		hello.ProtocolVersion = 2
		_ = stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Hello{Hello: hello}})
		_ = stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: m}})
		_ = stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Report{Report: &mapsyncv1.MapReport{
			Map: m.GetMap(), Live: 1, MaxEntries: 1, Refused: 1,
			Exceptions: []*mapsyncv1.MapException{{Key: deviceDelta("x-device\x1b[2J").GetKey(), Reason: escape("reason")}},
		}}})
	}
	<-limited.Done()
	return nil
}

// callAsObserver observes with a hostile name in the certificate, and then in the hello.
func (s *escapeSender) callAsObserver(ctx context.Context) error {
	for i, name := range []string{"x-observer\x1b[31mred", "x-observer"} {
		conf, err := s.c.tlsConfig(name, testcert.Options{File: fmt.Sprint("observer", i)})
		if err != nil {
			return err
		}
		hello := &mapsyncv1.Hello{Self: &mapsyncv1.Incarnation{Node: name, Number: 1}, Release: escape("release")}
		if err := s.call(ctx, conf, hello, &mapsyncv1.MapSubscription{Map: 1, Name: mapName, Observe: true}); err != nil {
			return err
		}
	}
	return nil
}

// callAsMember subscribes as mallory, with hostile texts in the hello and as the name of the map.
func (s *escapeSender) callAsMember(ctx context.Context) error {
	conf, err := s.c.tlsConfig(mallory, testcert.Options{File: mallory + "-client"})
	if err != nil {
		return err
	}
	self, address := &mapsyncv1.Incarnation{Node: mallory, Number: s.self}, s.c.address(attackers-1)+":"+grpcPort
	unknown := replicaSubscription(1)
	unknown.Name = escape("map")
	for _, each := range []struct {
		hello *mapsyncv1.Hello
		m     *mapsyncv1.MapSubscription
	}{
		{&mapsyncv1.Hello{Self: self, Address: address, Reports: true, Release: escape("release")}, replicaSubscription(1)},
		{&mapsyncv1.Hello{Self: self, Address: address, Release: escape("release")}, unknown},
		{&mapsyncv1.Hello{Self: self, Address: escape("hello") + ":1"}, replicaSubscription(1)},
		{&mapsyncv1.Hello{Self: self, Address: address, Cluster: escape("hello")}, replicaSubscription(1)},
		{&mapsyncv1.Hello{Self: &mapsyncv1.Incarnation{Node: escape("hello"), Number: 1}}, replicaSubscription(1)},
	} {
		if err := s.call(ctx, conf, each.hello, each.m); err != nil {
			return err
		}
	}
	return nil
}

// connect connects with certificates that the daemons refuse, and whose names are hostile.
func (s *escapeSender) connect(ctx context.Context) error {
	other, err := testcert.NewCA(s.c.dir, "x-subject\x1b[31m")
	if err != nil {
		return err
	}
	for i, ca := range []*testcert.CA{s.c.ca, other} {
		pair, err := ca.Issue("x-subject-\x1b[31mred", testcert.Options{
			File: fmt.Sprint("subject", i), URIs: []*url.URL{{Scheme: "spiffe", Host: "x-subject", Path: "/\x1b[31m"}},
		})
		if err != nil {
			return err
		}
		cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			return fmt.Errorf("load a hostile certificate: %w", err)
		}
		conf := &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
		hello := &mapsyncv1.Hello{Self: &mapsyncv1.Incarnation{Node: escape("hello"), Number: 1}}
		if err := s.call(ctx, conf, hello, replicaSubscription(1)); err != nil && status.Code(err) == 0 {
			return err
		}
	}
	return nil
}

// gossip announces nodes with hostile names and addresses.
func (s *escapeSender) gossip(context.Context) error {
	p, err := s.c.newPacketSender()
	if err != nil {
		return err
	}
	meta := gossipMeta(versionAt(0), s.c.address(attackers)+":"+grpcPort)
	p.send(alive(escape("gossip"), 1, s.c.address(attackers+7), meta))
	p.send(alive("x-gossip", 1, s.c.address(attackers+8), gossipMeta(versionAt(0), escape("gossip")+":1")))
	return p.close()
}

// readCommands are the commands that only read, with the forms of their outputs.
var readCommands = [][]string{
	{"status"},
	{"status", "--json"},
	{"status", "--problems"},
	{"status", "--problems", "--all"},
	{"status", "--problems", "--json"},
	{"dump", mapName},
	{"dump", mapName, "--json"},
	{"dump", devicesName},
	{"dump", devicesName, "--json"},
	{"diff", mapName},
	{"diff", mapName, "--json"},
	{"diff", devicesName},
	{"wait-ready", "--timeout", "0s"},
}

// readOutputs reads all outputs of the daemons until the context ends, and their logs. An error has the first control character.
func (c *cluster) readOutputs(ctx context.Context) error {
	r := outputReader{seen: make(map[string]bool)}
	var reading sync.WaitGroup
	errs := make([]error, len(c.nodes))
	for i, n := range c.nodes {
		reading.Go(func() {
			for errs[i] == nil && sleep(ctx, 100*time.Millisecond) {
				errs[i] = r.read(ctx, n)
			}
		})
	}
	reading.Wait()
	var found, missing []string
	for _, tag := range escapeTags {
		if r.seen[tag] {
			found = append(found, tag)
		} else {
			missing = append(missing, tag)
		}
	}
	c.note(fmt.Sprintf("%d outputs read, with texts of: %s", r.outputs, strings.Join(found, ", ")))
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("%w: no output has a text of %s", errNoTrace, strings.Join(missing, ", ")))
	}
	return errors.Join(errs...)
}

// outputReader reads outputs and notes the tags in them. mu protects its fields.
type outputReader struct {
	mu      sync.Mutex
	outputs int
	seen    map[string]bool
}

// read reads all outputs of a daemon, and its log.
func (r *outputReader) read(ctx context.Context, n *node) error {
	for _, args := range readCommands {
		if ctx.Err() != nil {
			break
		}
		if err := r.check(n.name+": syncd "+strings.Join(args, " "), n.output(ctx, args)); err != nil {
			return err
		}
	}
	log, err := os.ReadFile(n.logFile)
	if err != nil {
		return fmt.Errorf("read log of %s: %w", n.name, err)
	}
	return r.check("log of "+n.name, string(log))
}

func (r *outputReader) check(what, text string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outputs++
	for _, tag := range escapeTags {
		r.seen[tag] = r.seen[tag] || strings.Contains(text, "x-"+tag)
	}
	return checkPrintable(what, text)
}

// output returns both outputs of a command that reads. An exit code shows problems of the node, which the attack causes.
func (n *node) output(ctx context.Context, args []string) string {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
	defer cancel()
	out, _ := exec.CommandContext(limited, n.c.syncd, slices.Concat(args, []string{"--control-socket", n.socket()})...).CombinedOutput()
	return string(out)
}

// checkPrintable returns an error if a text has a character other than line feeds, tabs and those that a terminal shows.
func checkPrintable(what, text string) error {
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "forged") || !printable.Is(strings.ReplaceAll(line, "\t", " ")) {
			return fmt.Errorf("%s has a control character or a forged line: %q", filepath.Base(what), line)
		}
	}
	return nil
}
