package kmap

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBatchOrder checks that a batch keeps its order, also between updates and deletes of one key.
func TestBatchOrder(t *testing.T) {
	for _, o := range []Options{{}, {NoProgram: true}} {
		k := openMap(t, newKernelMap(t, hashSpec(4, 4, 10)), o)
		k1, v1 := entry(1, 1, 4, 4)
		k2, v2 := entry(2, 1, 4, 4)
		_, v3 := entry(2, 3, 4, 4)
		b := k.Batch()
		for _, w := range [][2][]byte{{k1, v1}, {k1, nil}, {k2, nil}, {k2, v2}, {k2, v3}} {
			if err := b.Add(w[0], w[1]); err != nil {
				t.Fatal(err)
			}
		}
		if failed, err := k.Apply(b); failed != 0 || err != nil {
			t.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
		}
		if all := content(t, k); len(all) != 1 || all[string(k2)] != string(v3) {
			t.Errorf("content: got %x, want the last write of key 2 only", all)
		}
	}
}

func TestFullMap(t *testing.T) {
	for _, o := range []Options{{}, {NoProgram: true}} {
		t.Run(fmt.Sprint(o.NoProgram), func(t *testing.T) {
			k := openMap(t, newKernelMap(t, hashSpec(8, 8, 100)), o)
			put(t, k, 0, 100, 1)
			b := k.Batch()
			for n := 90; n < 110; n++ { // ten present keys and ten absent keys
				if err := b.Add(entry(n, 2, 8, 8)); err != nil {
					t.Fatal(err)
				}
			}
			gone, _ := entry(0, 0, 8, 8)
			if err := b.Add(gone, nil); err != nil {
				t.Fatal(err)
			}
			failed, err := k.Apply(b)
			if failed != 10 || err != nil {
				t.Fatalf("apply: got %d failed writes, error %v, want 10 failed writes", failed, err)
			}
			for i := range b.Len() {
				if err := b.Err(i); (i >= 10 && i < 20) != errors.Is(err, unix.E2BIG) || (err != nil) != (i >= 10 && i < 20) {
					t.Errorf("result of entry %d: got %v, want E2BIG for entries 10 to 19 only", i, err)
				}
			}
			if got := len(content(t, k)); got != 99 {
				t.Errorf("entries: got %d, want 99", got)
			}
		})
	}
}

// TestBatchIntoNoPreallocMap writes bursts into a map without preallocation. Its memory comes from
// per-CPU lists that the kernel refills in the background, and a burst must not fail because it is
// faster.
func TestBatchIntoNoPreallocMap(t *testing.T) {
	k := openMap(t, newKernelMap(t, withFlags(hashSpec(48, 176, 60000), noPrealloc)), Options{})
	put(t, k, 0, 60000, 1)
	put(t, k, 0, 60000, 2)
	if n := len(content(t, k)); n != 60000 {
		t.Errorf("entries: got %d, want 60000", n)
	}
	put(t, k, 0, 60000, -1)
	checkContent(t, k, 0, 0, 0)
}

func TestBatchAddErrors(t *testing.T) {
	k := openMap(t, newKernelMap(t, hashSpec(8, 8, 100)), Options{Burst: 16})
	b := k.Batch()
	for _, w := range [][2]int{{7, 8}, {9, 8}, {8, 7}, {8, 9}, {8, 0}} {
		if b.Add(make([]byte, w[0]), make([]byte, w[1])) == nil {
			t.Errorf("add write of %v bytes: got no error, want an error", w)
		}
	}
	for n := range 16 {
		if err := b.Add(entry(n, 0, 8, 8)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Add(entry(16, 0, 8, 8)); !errors.Is(err, ErrBatchFull) {
		t.Errorf("add to full batch: got %v, want ErrBatchFull", err)
	}
}

// TestRetryKeepsOrder checks that a write which the map refused for a moment does not undo a later write of the same
// key in the batch.
func TestRetryKeepsOrder(t *testing.T) {
	k := openMap(t, newKernelMap(t, hashSpec(4, 4, 10)), Options{})
	b := k.Batch()
	key, older := entry(1, 1, 4, 4)
	_, newer := entry(1, 2, 4, 4)
	gone, _ := entry(2, 1, 4, 4)
	for _, w := range [][2][]byte{{key, older}, {key, newer}, {gone, older}, {gone, nil}, {gone, nil}} {
		if err := b.Add(w[0], w[1]); err != nil {
			t.Fatal(err)
		}
	}
	if failed, err := k.Apply(b); failed != 0 || err != nil {
		t.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
	}
	for i, errno := range []unix.Errno{unix.ETIMEDOUT, 0, unix.EBUSY, unix.EBUSY, 0} {
		b.setRC(i, errno)
	}
	if b.keepTransient() {
		t.Error("writes to try again: got some, want none, because later ones replace them")
	}
	if failed, err := k.Apply(b); failed != 0 || err != nil {
		t.Errorf("second attempt: got %d failed, error %v, want none", failed, err)
	}
	if all := content(t, k); len(all) != 1 || all[string(key)] != string(newer) {
		t.Errorf("content: got %x, want the later write of key 1 only", all)
	}
}

// TestLockedBucketIsRetried checks that only the entries that the map refused for a moment are
// written again, on every kernel's error for a locked bucket.
func TestLockedBucketIsRetried(t *testing.T) {
	k := openMap(t, newKernelMap(t, hashSpec(4, 4, 10)), Options{})
	b := k.Batch()
	results := []unix.Errno{unix.EBUSY, 0, unix.EDEADLK, unix.E2BIG, unix.ETIMEDOUT, unix.ENOMEM}
	for n, errno := range results {
		if err := b.Add(entry(n, 1, 4, 4)); err != nil {
			t.Fatal(err)
		}
		b.setRC(n, errno)
	}
	if !b.keepTransient() {
		t.Fatal("transient errors: got none, want four")
	}
	if failed, err := k.Apply(b); failed != 1 || err != nil {
		t.Fatalf("second attempt: got %d failed, error %v, want the error of the full map only", failed, err)
	}
	all := content(t, k)
	for n, errno := range results {
		key, _ := entry(n, 1, 4, 4)
		_, written := all[string(key)]
		if want := errno != 0 && errno != unix.E2BIG; written != want {
			t.Errorf("entry %d with %v: got written %v, want %v", n, errno, written, want)
		}
		if full := errno == unix.E2BIG; full != (b.Err(n) != nil) {
			t.Errorf("entry %d with %v: got error %v, want an error of the full map only", n, errno, b.Err(n))
		}
	}
}
