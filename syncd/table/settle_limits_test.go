package table

import "testing"

func (r *rig) settle(now int64, limit int) (next int64) {
	r.tab.Update(func(tx *Tx) { next = tx.Settle(now, limit) })
	return next
}

// TestSettleKeys: the table settles at most Options.SettleKeys new keys. It counts the others, unless
// the limit is 0.
func TestSettleKeys(t *testing.T) {
	for _, test := range []struct {
		keys      int
		followed  string
		unsettled uint64
	}{{0, "", 0}, {1, "k", 2}, {2, "kl", 1}, {3, "klm", 0}} {
		r := newRig(t, func(o *Options) { o.SettleKeys = test.keys })
		for _, k := range []string{"k", "l", "m"} {
			r.local(Accepted, second, "update "+k+" v packet 0")
		}
		r.settle(2*second, 9)
		if got, n := r.takeRereads(), r.tab.Stats().Unsettled; got != test.followed || n != test.unsettled {
			t.Errorf("%d keys: got rereads %q, %d unsettled, want %q and %d", test.keys, got, n, test.followed, test.unsettled)
		}
	}
}

// TestSettleLimit: Settle queues at most limit keys. It returns the time at which the next key is due.
func TestSettleLimit(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SettleKeys = 9 })
	for _, k := range []string{"k", "l", "m"} {
		r.local(Accepted, second, "update "+k+" v packet 0")
	}
	due := second + settleFirst
	for _, test := range []struct {
		limit int
		next  int64
		keys  string
	}{{0, due, ""}, {-1, due, ""}, {1, due, "k"}, {2, due + 2*settleFirst, "lm"}, {2, due + 2*settleFirst, ""}} {
		if next := r.settle(due, test.limit); next != test.next {
			t.Errorf("limit %d: got next %d, want %d", test.limit, next, test.next)
		}
		r.wantRereads(test.keys)
	}
}

// TestSettleFollowsOwnRecordsAlone: Settle skips records of other nodes, and slots of deleted or
// forgotten keys.
func TestSettleFollowsOwnRecordsAlone(t *testing.T) {
	for name, change := range map[string]func(*rig){
		"taken over": func(r *rig) { r.remote(Accepted, 2*second, peer, Version(9*second), "k", "w"); r.write() },
		"deleted":    func(r *rig) { r.local(Accepted, 2*second, "delete k - packet 0") },
		"forgotten": func(r *rig) {
			r.local(Accepted, 2*second, "delete k - packet 0")
			r.expire(9*second, 9)
			r.want("k", "unknown")
		},
		"another key in its slot": func(r *rig) {
			r.local(Accepted, 2*second, "delete k - packet 0")
			r.expire(9*second, 9)
			r.tab.opt.SettleKeys = 0
			r.local(Accepted, 10*second, "update l v packet 0")
		},
	} {
		r := newRig(t, shortLived, func(o *Options) { o.SettleKeys = 9 })
		r.local(Accepted, second, "update k v packet 0")
		r.takeRereads()
		change(r)
		r.takeRereads()
		if next := r.settle(20*second, 9); next != 0 {
			t.Errorf("%s: got next %d, want 0", name, next)
		}
		r.wantRereads("")
		if st := r.tab.Stats(); st.PendingRereads != 0 {
			t.Errorf("%s: got %d pending rereads, want 0", name, st.PendingRereads)
		}
	}
}

// TestKeyThatChangesBeforeItsFirstReread: the first reread shows a change of the new key. The key is stable after
// three more rereads without a change.
func TestKeyThatChangesBeforeItsFirstReread(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SettleKeys = 9 })
	r.local(Accepted, second, "update k v packet 0")
	now, rereads := second, 0
	for outcome := Accepted; ; outcome = Unchanged {
		if now = r.settle(now, 9); now == 0 {
			break
		}
		r.settle(now, 9)
		if r.takeRereads() == "" {
			break
		}
		rereads++
		r.local(outcome, now+2*timestampMargin, "update k w reread 0")
	}
	if rereads != 4 {
		t.Errorf("rereads: got %d, want 4", rereads)
	}
}
