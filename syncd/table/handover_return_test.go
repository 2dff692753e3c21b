package table

import "testing"

// TestTimerBeforeTheRecordArrives: a drained node whose syncd has restarted has an entry of which it does not have the record yet.
// If its timer ends it, the record stays on the other nodes.
func TestTimerBeforeTheRecordArrives(t *testing.T) {
	for _, timer := range []bool{false, true} {
		r := newRig(t, sameMap, func(o *Options) { o.HasTimer = timer })
		r.tab.Update(func(tx *Tx) {
			tx.Load(pad("k", keySize), pad("v", valueSize))
			tx.SetHandover(self.Node, Handover{Incarnation: older.Incarnation, Version: 10})
		})
		r.local(Accepted, 1*second, "delete k - packet 0")
		r.tab.Update(func(tx *Tx) {
			d := Delta{Key: pad("k", keySize), Value: pad("v", valueSize), Version: 10, Owner: tx.Intern(older)}
			tx.Remote(&d, 2*second, RemoteOptions{})
		})
		var rec Record
		r.tab.View(func(tx *Tx) { tx.Get(pad("k", keySize), &rec) })
		if rec.Delete == timer {
			t.Errorf("map with timers %t: got %+v, want a delete: %t", timer, rec, !timer)
		}
	}
}

// TestRecordAfterTheReturn: a drain ends before a peer has sent a record that was handed over. The absence of its entry is no
// delete: the load balancer has cleared the map. It is one for a record that was not handed over.
func TestRecordAfterTheReturn(t *testing.T) {
	r := newRig(t, sameMap)
	r.tab.Update(func(tx *Tx) {
		tx.SetHandover(self.Node, Handover{Incarnation: older.Incarnation, Version: 10})
		tx.EndHandover(1 * second)
	})
	r.remote(Accepted, 2*second, older, 10, "k", "v")
	r.want("k", "v v10 a90 dirty")
	r.remote(Accepted, 2*second, older, 11, "later", "v")
	r.want("later", "- v12 a100")
}

// TestRecordAfterAnOlderDelete: a peer that was cut off has sent the former delete of an entry that was created again and handed
// over since. The absence of the entry is still no delete when another peer sends the record, also after the end of the drain. The
// same holds for the delete of an entry whose record has yet to arrive.
func TestRecordAfterAnOlderDelete(t *testing.T) {
	for name, c := range map[string]struct {
		ended, clears bool
		want          string
	}{
		"drained":     {want: "v v10 a90"},
		"ended":       {ended: true, want: "v v10 a90 dirty"},
		"ended, held": {ended: true, clears: true, want: "v v10 a90 dirty"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, sameMap, func(o *Options) { o.HoldClears = c.clears })
			r.load(Accepted, "loaded", "v")
			r.tab.Update(func(tx *Tx) { tx.SetHandover(self.Node, Handover{Incarnation: older.Incarnation, Version: 10}) })
			r.remote(Accepted, 1*second, older, 5, "k", "-")
			r.local(Accepted, 1*second, "delete loaded - syscall 0")
			if c.ended {
				r.tab.Update(func(tx *Tx) { tx.EndHandover(2 * second) })
			}
			for _, key := range []string{"k", "loaded"} {
				r.remote(Accepted, 3*second, older, 10, key, "v")
				r.want(key, c.want)
			}
			r.remote(Accepted, 3*second, older, 5, "later", "-")
			r.remote(Accepted, 3*second, older, 11, "later", "v")
			if later := r.state("later"); !c.clears && later != "- v12 a100" {
				t.Errorf("record that was not handed over: got %q, want a delete", later)
			}
		})
	}
}

// TestNewerRecordAfterAHandover: a peer that was cut off during the drain has a newer record of an earlier incarnation. The entry,
// which the load balancer of the drained node has deleted since, stays handed over.
func TestNewerRecordAfterAHandover(t *testing.T) {
	r := newRig(t, sameMap)
	r.local(Accepted, 1*second, "update k v packet 0")
	r.beginHandover()
	r.local(Ignored, 2*second, "delete k - syscall 0")
	r.remote(Accepted, 3*second, older, Version(9*second), "k", "w")
	r.local(Unchanged, 4*second, "delete k - reread 0")
	r.want("k", "v v9000000001 a90")
}

// TestSameValueAfterAHandover: a write of the same value takes no record out of the handover, also if the record was adopted.
func TestSameValueAfterAHandover(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.adopt()
	r.tab.Update(func(tx *Tx) { tx.AdvanceClock(10 * second) })
	r.beginHandover()
	r.local(Unchanged, 11*second, "update k v packet 0")
	r.local(Ignored, 12*second, "delete k - syscall 0")
}

// TestOwnRecordAfterAnOlderDelete: a record of this incarnation, which has deleted it after the end of a drain, does not come back.
func TestOwnRecordAfterAnOlderDelete(t *testing.T) {
	r := newRig(t, sameMap, shortLived)
	r.local(Accepted, 1*second, "update k v packet 0")
	r.beginHandover()
	r.tab.Update(func(tx *Tx) { tx.EndHandover(2 * second) })
	r.local(Accepted, 3*second, "delete k - packet 0")
	r.expire(60*second, 9)
	r.remote(Accepted, 61*second, older, 50, "k", "-")
	r.remote(Accepted, 61*second, self, Version(second), "k", "v")
	r.want("k", "- v1000000001 a100")
}

// TestDeleteBeforeAHandedOverRecord: a hook reports the delete of an entry before the record that was handed over arrives. It counts if
// the data plane has made it, also if a former delete arrives first.
func TestDeleteBeforeAHandedOverRecord(t *testing.T) {
	const kept, deleted = "v v10 a90", "- v11 a100"
	for name, c := range map[string]struct {
		context       string
		former, ended bool
		late, after   bool // the event arrives after the former delete, or after the end of the drain
		want          string
	}{
		"packet":                          {context: "packet", want: deleted},
		"packet, former delete":           {context: "packet", former: true, want: deleted},
		"packet after the former delete":  {context: "packet", former: true, late: true, want: deleted},
		"packet, drain ended":             {context: "packet", former: true, ended: true, want: deleted},
		"bpf(2)":                          {context: "syscall", want: kept},
		"bpf(2), former delete":           {context: "syscall", former: true, want: kept},
		"bpf(2) after the former delete":  {context: "syscall", former: true, late: true, want: kept},
		"bpf(2), former delete, returned": {context: "syscall", former: true, ended: true, want: kept + " dirty"},
		"bpf(2), returned":                {context: "syscall", ended: true, want: kept + " dirty"},
		"bpf(2), after the return":        {context: "syscall", ended: true, after: true, want: kept + " dirty"},
		"bpf(2), both":                    {context: "syscall", former: true, ended: true, after: true, want: kept + " dirty"},
		"packet after the return":         {context: "packet", former: true, ended: true, after: true, want: deleted},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, sameMap)
			r.tab.Update(func(tx *Tx) {
				tx.SetHandover(self.Node, Handover{Incarnation: older.Incarnation, Version: 10})
				tx.BeginLoad()
			})
			event := func() { r.local(Unchanged, 1*second, "delete k - "+c.context+" 0") }
			if !c.late && !c.after {
				event()
			}
			r.tab.Update(func(tx *Tx) { tx.EndLoad() })
			if c.former {
				r.remote(Accepted, 2*second, older, 5, "k", "-")
			}
			if c.late {
				event()
			}
			if c.ended {
				r.tab.Update(func(tx *Tx) { tx.EndHandover(2 * second) })
			}
			if c.after {
				event()
			}
			r.remote(Accepted, 3*second, older, 10, "k", "v")
			r.want("k", c.want)
		})
	}
}

// TestDeleteAfterTheReturn: the control plane deletes an entry after the end of a drain, before the record that was handed over
// arrives. It counts like any other delete.
func TestDeleteAfterTheReturn(t *testing.T) {
	for name, c := range map[string]struct {
		loaded, former bool
		context        string
		change         func(*Options)
	}{
		"entry":                      {loaded: true, context: "syscall", change: sameMap},
		"no record":                  {context: "syscall", change: sameMap},
		"former delete":              {former: true, context: "syscall", change: sameMap},
		"former delete, packet":      {former: true, context: "packet", change: func(o *Options) { sameMap(o); holdClears(o) }},
		"new map, former delete":     {former: true, context: "syscall", change: func(*Options) {}},
		"new map, delete by packets": {former: true, context: "packet", change: func(*Options) {}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.change)
			r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
			want := Unchanged
			if c.loaded {
				r.load(Accepted, "k", "v")
				want = Accepted
			}
			r.tab.Update(func(tx *Tx) {
				tx.SetHandover(self.Node, Handover{Incarnation: older.Incarnation, Version: 10})
				tx.EndLoad()
				tx.EndHandover(1 * second)
			})
			if c.former {
				r.remote(Accepted, 2*second, older, 5, "k", "-")
			}
			r.local(want, 2*second, "delete k - "+c.context+" 0")
			r.remote(Accepted, 3*second, older, 10, "k", "v")
			r.write()
			r.want("k", "- v11 a100")
		})
	}
}
