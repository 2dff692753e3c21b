package table

import "testing"

// owes returns what is left of a debt.
func (r *rig) owes(d *Debt) (n int) {
	r.tab.View(func(tx *Tx) { n = tx.Owes(d) })
	return n
}

func (r *rig) owe() (d *Debt) {
	r.tab.View(func(tx *Tx) { d = tx.Owe() })
	return d
}

func (r *rig) wantOwed(d *Debt, want int) {
	r.Helper()
	checkInvariants(r, r.tab)
	if n := r.owes(d); n != want {
		r.Fatalf("%d records are owed, want %d", n, want)
	}
}

// wantPaid verifies that left records of a debt are owed once the kernel map holds the table up to
// position, and none once it holds all.
func (r *rig) wantPaid(d *Debt, position uint64, left int) {
	r.Helper()
	r.tab.Update(func(tx *Tx) { tx.SetApplied(position) })
	r.wantOwed(d, left)
	r.write()
	r.wantOwed(d, 0)
}

func TestDebtIsOfWhatIsDirtyNow(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.write()
	r.wantOwed(r.owe(), 0)
	r.remote(Accepted, 0, peer, 1000, "l", "v")
	r.remote(Accepted, 0, peer, 1000, "m", "v")
	d := r.owe()
	r.remote(Accepted, 0, peer, 1001, "n", "v")
	r.wantOwed(d, 2)
	r.write()
	r.wantOwed(d, 0)
	if n := len(r.tab.debts); n != 0 {
		t.Fatalf("%d debts are still counted", n)
	}
}

// What changes before the writer comes to it moves beyond any position, and is owed still.
func TestDebtFollowsWhatChanges(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	r.remote(Accepted, 0, peer, 1000, "l", "v1")
	d := r.owe()
	first := r.take()
	r.remote(Accepted, 0, peer, 2000, "l", "v2")
	r.wantOwed(d, 2)
	r.applied(first, nil)
	r.wantPaid(d, 2, 1)
}

// What the writer took before the debt was made, and has changed since, is not what is owed.
func TestDebtIsNotPaidByAnOlderWrite(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v1")
	first := r.take()
	r.remote(Accepted, 0, peer, 2000, "k", "v2")
	d := r.owe()
	r.applied(first, nil)
	r.wantPaid(d, 1, 1)
}

func TestDebtOfWhatFails(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	d := r.owe()
	r.applied(r.take(), errFull)
	r.tab.Update(func(tx *Tx) { tx.SetApplied(1) })
	r.wantOwed(d, 1)
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(1) })
	r.wantOwed(d, 1)
	r.write()
	r.wantOwed(d, 0)
}

func TestDebtIsPaidByTheDataPlane(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	d := r.owe()
	r.local(Accepted, 2000, "update k w packet 0")
	r.wantOwed(d, 0)
}

func TestDebtForgiven(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	d := r.owe()
	r.tab.View(func(tx *Tx) { tx.Forgive(d); tx.Forgive(nil) })
	if n := len(r.tab.debts); n != 0 {
		t.Fatalf("%d debts are still counted", n)
	}
}
