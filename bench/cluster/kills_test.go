package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// kill kills the syncd of random nodes at random times while their load balancers continue to
// write, and starts it again. The peers must not treat a restart as a death. At each kill another node is ready, because
// nothing is promised if no node has all records. Before the last kill all nodes are: if the only two nodes that have an
// entry are killed at once, and its load balancer deletes it meanwhile, the entry comes back. The load changes those of
// earlier kills again.
func (tr *trial) kill(times int, random *rand.Rand) {
	for k := range times {
		i := random.IntN(len(tr.nodes))
		ready := func(ctx context.Context) error { return tr.otherIsReady(ctx, i) }
		if k == times-1 {
			ready = tr.ready
		}
		tr.eventually(readyLimit, ready)
		time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond) // the time of the kill
		tr.t.Logf("kill %d: node %s", k+1, tr.nodes[i].name)
		tr.post(i, "/kill")
		time.Sleep(time.Duration(random.IntN(2500)) * time.Millisecond) // the load goes on without syncd
		tr.syncd(i)
	}
}

// otherIsReady returns an error unless a node other than node i is ready.
func (tr *trial) otherIsReady(ctx context.Context, i int) error {
	for j, n := range tr.nodes {
		if j == i {
			continue
		}
		s, err := n.status(ctx)
		if err != nil {
			return err
		}
		if s.Ready {
			return nil
		}
	}
	return fmt.Errorf("no node other than %s is ready", tr.nodes[i].name)
}

func testKills(t *testing.T, p place, l load, times int) {
	tr := newTrial(t, p, 3, mapSettings{}, placeOptions(p))
	tr.load(l)
	tr.kill(times, rand.New(rand.NewPCG(1, 2)))
	time.Sleep(2 * time.Second) // the duration of the load
	tr.eachPost("/unload")
	tr.awaitConverged()
	tr.noLosses()
}
