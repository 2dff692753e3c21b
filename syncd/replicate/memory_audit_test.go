package replicate

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/table"
)

// corruptTable changes a value in memory, without a change in the table.
func corruptTable(tb *table.Table, k int) {
	tb.View(func(tx *table.Tx) {
		var rec table.Record
		tx.Get(key(k), &rec)
		rec.Value[0] ^= 1
	})
}

// TestAuditRounds checks that the audit visits every record within its interval, and no record
// twice in one round.
func TestAuditRounds(t *testing.T) {
	for _, c := range []struct {
		records, turns int
		rounds         int
		deleted        int
		least, most    uint64 // minimum and maximum number of audits that have ended after the rounds
	}{
		{0, 4, 1, 0, 1, 1},
		{4 * (recordsPerLock - 1), 4, 4, 0, 1, 1},
		{4*recordsPerLock + 1, 4, 4, 0, 1, 2},
		{2 * recordsPerLock, 1, 4, 0, 4, 4},
		{3 * recordsPerLock, 1, 4, 0, 4, 4},
		{100, 1, 3, 0, 3, 3},
		{100, 1, 3, 100, 3, 3},
	} {
		r, tb := newTestReplicator(t)
		r.opt.auditInterval = time.Duration(c.turns) * housekeepingInterval
		putTable(t, tb, 0, c.records, 1)
		(&node{t: t, tb: tb}).del(0, c.deleted)
		for range c.rounds {
			r.audit(t.Context())
		}
		if n := tb.Stats().Audits; n < c.least || n > c.most {
			t.Errorf("%d records, %d deleted, %d turns: got %d audits after %d rounds, want %d to %d", c.records, c.deleted, c.turns, n, c.rounds, c.least, c.most)
		}
	}
}

// TestAuditFindingsAreLoggedOnce checks that the findings of an audit are logged once, with the
// number of buckets.
func TestAuditFindingsAreLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	r, tb := newTestReplicator(t)
	r.opt.Logger, r.opt.auditInterval = slog.New(slog.NewTextHandler(&out, nil)), 1
	putTable(t, tb, 0, 10, 1)
	if r.audit(t.Context()); out.Len() != 0 {
		t.Errorf("audit without a change: got log %s, want none", out.String())
	}
	for range 2 {
		out.Reset()
		corruptTable(tb, 3)
		r.audit(t.Context())
		if !strings.Contains(out.String(), "changed in memory") || !strings.Contains(out.String(), "map="+testMap+" buckets=1 problem=memory-corrupt hint=") {
			t.Errorf("log of the audit: got %q, want a change in memory with map=%s buckets=1 and a hint", out.String(), testMap)
		}
	}
	out.Reset()
	if r.audit(t.Context()); out.Len() != 0 {
		t.Errorf("second audit: got log %s, want none", out.String())
	}
}
