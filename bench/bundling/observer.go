package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"time"

	"mapsync/docs/examples/bundling/trace"
	"mapsync/internal/tool"
	"mapsync/syncd/daemon"
)

// observer has the sums of all nodes, as one node sends them.
type observer interface {
	// sums returns the sums of the service under load, by node.
	sums(context.Context) (map[string]trace.Sums, error)
	close() error
}

// observe starts an observer at a node.
func (c *cluster) observe(n *node) (observer, error) {
	if c.example == "" {
		return tableObserver{daemon.NewClient(n.config.ControlSocket)}, nil
	}
	f, err := startCommand("feed", n.Start, exec.Command(c.example, "feed", "-addr", n.address+":7947", "-node", n.name, "-port", fmt.Sprint(servicePort), "-interval", "200ms",
		"-cert", c.observer.CertFile, "-key", c.observer.KeyFile, "-ca", c.observer.CAFile))
	return feedObserver{f}, err
}

// feedObserver is the example's observer, in its own process: generated types of a map cannot be linked with syncd.
type feedObserver struct{ feed *child }

func (o feedObserver) sums(context.Context) (map[string]trace.Sums, error) {
	var t trace.Table
	err := o.feed.receive(&t)
	return t.Owners, err
}

func (o feedObserver) close() error {
	_, err := o.feed.stop()
	return err
}

// tableObserver reads the table of a syncd.
type tableObserver struct{ client *daemon.Client }

func (o tableObserver) sums(ctx context.Context) (map[string]trace.Sums, error) {
	if err := tool.Pause(ctx, 200*time.Millisecond); err != nil {
		return nil, err
	}
	all := make(map[string]trace.Sums)
	err := o.client.Entries(ctx, mapName, daemon.EntryQuery{Form: daemon.FormRaw}, func(e *daemon.Entry) error {
		key, value, err := e.Bytes()
		if err != nil {
			return err
		}
		const portAt, directionAt, outgoing = 8, 10, 1 // in struct flow_key
		order := binary.NativeEndian
		if len(key) < directionAt+1 || len(value) < 32 || order.Uint16(key[portAt:]) != servicePort {
			return nil
		}
		owner, _, _ := strings.Cut(e.Owner, "/")
		s := all[owner]
		c := &s.Incoming
		if key[directionAt] == outgoing {
			c = &s.Outgoing
		}
		*c = sum(*c, ends{Connections: order.Uint64(value), Messages: order.Uint64(value[8:]), Sent: order.Uint64(value[16:]), Received: order.Uint64(value[24:])})
		all[owner] = s
		return nil
	})
	return all, err
}

func (tableObserver) close() error { return nil }

// sameReadings is the number of equal readings after which sums no longer change.
const sameReadings = 25

// awaitSums waits until an observer has these sums, and returns them. The sums of a node whose tracer has missed runs may stay
// smaller: see counted. missed has the number of these runs.
func awaitSums(ctx context.Context, o observer, want map[string]trace.Sums, missed map[string]uint64) (got map[string]trace.Sums, err error) {
	const limit = 2 * time.Minute
	same := 0
	for until := time.Now().Add(limit); time.Now().Before(until); {
		read, err := o.sums(ctx)
		if err != nil {
			return got, errors.Join(fmt.Errorf("observe the sums: %w", err), ctx.Err())
		}
		if same++; !maps.Equal(read, got) {
			same = 0
		}
		got = read
		equal, allowed := true, true
		for owner, sums := range want {
			equal = equal && got[owner] == sums
			allowed = allowed && mayBe(got[owner], sums, missed[owner])
		}
		if equal || allowed && same >= sameReadings {
			return got, nil
		}
	}
	return got, fmt.Errorf("sums at the observer after %s: got %+v, want %+v, without at most %v runs that the kernel skipped", limit, got, want, missed)
}
