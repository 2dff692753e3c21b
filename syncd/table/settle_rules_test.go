package table

import "testing"

func (r *rig) settle(now int64, limit int) (next int64) {
	r.tab.Update(func(tx *Tx) { next = tx.Settle(now, limit) })
	return next
}

// TestSettleKeys: the table follows at most Options.SettleKeys new keys. It counts the others, unless that is 0.
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
		if got, n := r.rechecks(), r.tab.Stats().Unsettled; got != test.followed || n != test.unsettled {
			t.Errorf("%d keys: %q are read again, %d are not followed", test.keys, got, n)
		}
	}
}

// TestSettleLimit: Settle queues at most limit keys, and returns when the next one is due.
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
			t.Errorf("limit %d: next %d, want %d", test.limit, next, test.next)
		}
		r.wantRechecks(test.keys)
	}
}

// TestSettleFollowsOwnRecordsAlone: Settle skips records of other nodes, and slots of deleted or forgotten keys.
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
		r.rechecks()
		change(r)
		r.rechecks()
		if next := r.settle(20*second, 9); next != 0 {
			t.Errorf("%s: next %d", name, next)
		}
		r.wantRechecks("")
		if st := r.tab.Stats(); st.Rechecks != 0 {
			t.Errorf("%s: %d rereads wait", name, st.Rechecks)
		}
	}
}
