package table

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestNoWakeUpIsLost: a writer and a reader of rereads sleep until the table wakes them, without a timer. Several
// goroutines change the table on one processor that others keep busy. A lost wake-up leaves work in the table.
func TestNoWakeUpIsLost(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r := newRig(t)
	var background, changers sync.WaitGroup
	stop := make(chan struct{})
	defer background.Wait()
	defer close(stop)
	background.Go(func() {
		for busy := true; busy; {
			select {
			case <-stop:
				busy = false
			default:
			}
		}
	})
	background.Go(func() { r.sleep(r.writeInTwoSteps, stop) })
	background.Go(func() { r.sleep(r.rereadInTwoSteps, stop) })
	// The last notification of each round is the one that matters.
	for round := range uint64(100) {
		for id := range uint64(3) {
			changers.Go(func() { r.changeOften(3*round + id) })
		}
		changers.Wait()
		r.awaitNoWork()
	}
}

// awaitNoWork waits until the sleepers have done all work. It wakes none of them.
func (r *rig) awaitNoWork() {
	r.Helper()
	// The sleep leaves the processor to the sleepers.
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Microsecond) {
		st := r.tab.Stats()
		if st.Dirty == 0 && st.PendingRereads == 0 && st.Applied == st.Head {
			return
		}
		if time.Now().After(end) {
			r.Fatalf("work without a wake-up: got %d dirty, %d rereads, applied %d of %d, want none and all",
				st.Dirty, st.PendingRereads, st.Applied, st.Head)
		}
	}
}

// changeOften enters records of a peer and requests rereads, with pauses.
func (r *rig) changeOften(id uint64) {
	random := rand.New(rand.NewPCG(id, 1))
	key := make([]byte, keySize)
	for i := range uint64(4) {
		binary.NativeEndian.PutUint16(key, uint16(random.IntN(50)))
		r.tab.Update(func(tx *Tx) {
			d := Delta{Key: key, Value: pad("v", valueSize), Version: Version(1000 + 4*id + i), Owner: tx.Intern(peer)}
			tx.Remote(&d, 0, RemoteOptions{})
		})
		r.tab.Update(func(tx *Tx) { tx.RequestReread(key) })
		if random.IntN(5) == 0 {
			// The pause lets the sleepers fall asleep between two changes.
			time.Sleep(time.Duration(random.IntN(200)) * time.Microsecond)
		}
	}
}

// sleep works whenever the table wakes it.
func (r *rig) sleep(work func(), stop <-chan struct{}) {
	wake := make(chan struct{}, 1)
	defer r.tab.Subscribe(wake)()
	for {
		select {
		case <-wake:
			work()
		case <-stop:
			return
		}
	}
}

// writeInTwoSteps takes the dirty records and reports them as written, as a syncer does.
func (r *rig) writeInTwoSteps() {
	var all []Record
	var position uint64
	r.tab.View(func(tx *Tx) {
		for rec := (Record{}); tx.NextDirty(r.writer, &rec); {
			all = append(all, rec)
		}
		position = r.writer.Position()
	})
	runtime.Gosched()
	r.tab.Update(func(tx *Tx) {
		for _, rec := range all {
			tx.Applied(rec.Ref, rec.Version, nil)
		}
	})
	r.tab.Update(func(tx *Tx) { tx.SetApplied(position) })
}

// rereadInTwoSteps takes the requested rereads and enters that the map holds the keys.
func (r *rig) rereadInTwoSteps() {
	keys := make([]byte, 100*keySize)
	var read Reading
	r.tab.Update(func(tx *Tx) {
		tx.BeginReading(&read)
		keys = keys[:tx.TakeRereads(keys)*keySize]
	})
	runtime.Gosched()
	r.tab.Update(func(tx *Tx) {
		for ; len(keys) > 0; keys = keys[keySize:] {
			tx.Local(&Change{Key: keys[:keySize], Value: pad("v", valueSize), Time: 1, Context: ContextReread, Read: &read})
		}
		tx.EndReading(&read)
	})
}
