package table

import (
	"bytes"
	"fmt"
	"testing"
)

// BenchmarkDigestParts measures the parts of the digest of one record.
func BenchmarkDigestParts(b *testing.B) {
	t := newFlows(b)
	var f flows
	t.Update(func(tx *Tx) { f.local(tx, 1, 1, 1) })
	m := t.meta(firstSlot)
	var sum uint64
	b.Run("key", func(b *testing.B) {
		for b.Loop() {
			sum += t.digester.hashKey(f.key[:])
		}
	})
	b.Run("key under a mask", func(b *testing.B) {
		mask := bytes.Repeat([]byte{0xff}, flowKey)
		mask[flowKey/2] = 0
		d := digester{keySeed: 1}
		d.maskKeys(mask)
		for b.Loop() {
			sum += d.hashKey(f.key[:])
		}
	})
	b.Run("content", func(b *testing.B) {
		for b.Loop() {
			sum += t.digester.hashValue(nil, f.value[:])
		}
	})
	b.Run("leave and join", func(b *testing.B) {
		for b.Loop() {
			t.removeFromDigest(firstSlot)
			m.version++
			t.addToDigest(firstSlot)
		}
	})
	_ = sum
}

// BenchmarkDigestOfNodes measures a digest of 20,000 nodes with one record each, and its parts.
func BenchmarkDigestOfNodes(b *testing.B) {
	t := newFlows(b)
	for i := range uint64(20_000) {
		t.digester.forNode(fmt.Sprint("n", i)).digestSums.add(recordHash{bucket: i % DigestBuckets, sum: i, version: i})
	}
	var parts Buckets
	t.View(func(tx *Tx) {
		for b.Loop() {
			tx.DigestOfNodes(func(string) bool { return true }, &parts)
		}
	})
}
