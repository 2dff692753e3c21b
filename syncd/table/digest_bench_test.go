package table

import (
	"bytes"
	"testing"
)

// BenchmarkDigestParts is what the digest of one record is made of.
func BenchmarkDigestParts(b *testing.B) {
	t := newFlows(b)
	var f flows
	t.Update(func(tx *Tx) { f.local(tx, 1, 1, 1) })
	m := t.meta(firstSlot)
	var sum uint64
	b.Run("key", func(b *testing.B) {
		for b.Loop() {
			sum += t.digester.key(f.key[:])
		}
	})
	b.Run("key under a mask", func(b *testing.B) {
		mask := bytes.Repeat([]byte{0xff}, flowKey)
		mask[flowKey/2] = 0
		d := digester{keySeed: 1}
		d.maskKeys(mask)
		for b.Loop() {
			sum += d.key(f.key[:])
		}
	})
	b.Run("content", func(b *testing.B) {
		for b.Loop() {
			sum += t.digester.content(f.value[:])
		}
	})
	b.Run("leave and join", func(b *testing.B) {
		for b.Loop() {
			t.leave(firstSlot)
			m.version++
			t.join(firstSlot)
		}
	})
	_ = sum
}
