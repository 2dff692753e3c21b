package drill

import (
	"fmt"
	"testing"
	"time"

	"mapsync/internal/previous"
)

// TestPreviousRelease runs syncd of the previous release beside this release, each once as the
// active node and once as the standby. The active node and its load balancer die under load. Every
// session survives. Without hooks, scans detect the changes.
func TestPreviousRelease(t *testing.T) {
	ok, why := canAttach(t)
	attach := "kprobe"
	if !ok {
		t.Log("hooks are unavailable, scans detect the changes: ", why)
		attach = "none"
	}
	sessions := 1000
	if testing.Short() {
		sessions = 200
	}
	before, now := previous.Program(t), thisSyncd(t)
	for _, c := range []struct {
		name            string
		active, standby string
		versions        [2]string
	}{
		{"previous to current", before, now, [2]string{previousVersion, thisVersion}},
		{"current to previous", now, before, [2]string{thisVersion, previousVersion}},
	} {
		t.Run(fmt.Sprintf("%s/%s/ring", c.name, attach), func(t *testing.T) {
			opts := Options{Sessions: sessions, Syncd: c.active, StandbySyncd: c.standby, Attach: attach, Hold: time.Second}
			tr := newTrial(t, opts, func(r *run) {
				r.adjust = func(c *settings) {
					if attach == "none" {
						c.ScanInterval, c.ScanBudget = "200ms", 20
					}
				}
			})
			tr.must(tr.open(t.Context()))
			tr.must(tr.eventually(convergeLimit, func() error { return tr.checkMaps(0, active, standby) }))
			tr.must(tr.eventually(tr.opts.SyncTimeout, func() error { return tr.checkInSync(c.versions) }))
			tr.must(tr.flow(t.Context(), tr.opts.Flow))
			tr.must(tr.failOver(tr.opts.Sessions))
			tr.must(tr.checkMaps(0, standby))
		})
	}
}

// previousVersion is the version that syncd of the previous release reports: see
// scripts/previous-release.
const previousVersion = "previous"

// checkInSync returns an error if a node is of another version, or does not report that its digests
// agree with its peer's.
func (tr *trial) checkInSync(versions [2]string) error {
	for i, d := range tr.daemons {
		s, err := tr.queryStatus(tr.t.Context(), d)
		if err != nil {
			return err
		}
		if s.Version != versions[i] {
			return fmt.Errorf("%s has version %q, want %q", d.process.name, s.Version, versions[i])
		}
		if !s.connected() || len(s.Peers[0].Maps) != 1 || !s.Peers[0].Maps[0].Agreed {
			return fmt.Errorf("%s is not in sync with its peer: %+v", d.process.name, s)
		}
	}
	return nil
}
