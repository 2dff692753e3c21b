package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// presence returns the result of the readings of a node's kernel map since the last call.
func (r *remote) presence(ctx context.Context) (p presence, err error) {
	err = r.call(ctx, http.MethodGet, "/presence", nil, &p)
	return p, err
}

// awaitStable waits until each kernel map has had all stable flows. From then on, they must stay.
func (tr *trial) awaitStable() {
	tr.t.Helper()
	tr.eventually(convergeLimit(), func(ctx context.Context) error {
		var errs []error
		for _, n := range tr.nodes {
			p, err := n.presence(ctx)
			if err == nil && p.Absent > 0 {
				err = fmt.Errorf("kernel map of %s has never had %d stable flows", n.name, p.Absent)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// stableStayed fails if a kernel map lacked a stable flow, of any node, at a reading after it was there.
func (tr *trial) stableStayed() {
	tr.t.Helper()
	for _, n := range tr.nodes {
		p, err := n.presence(tr.t.Context())
		tr.must(err)
		tr.t.Logf("kernel map of %s: %d readings of the stable flows, at most %v apart", n.name, p.Readings, p.Longest.Round(time.Millisecond))
		if p.Readings == 0 || p.Absent > 0 {
			tr.t.Errorf("kernel map of %s: got %d readings, and %d stable flows that it has never had, want readings and no such flow", n.name, p.Readings, p.Absent)
		}
		if len(p.Lost) > 0 {
			tr.t.Errorf("kernel map of %s: got %d stable flows that a reading lacked, want none; the first:\n  %s", n.name, len(p.Lost), strings.Join(p.Lost[:min(len(p.Lost), 8)], "\n  "))
		}
	}
}
