package table

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// A digest stands for the live records that a node owns, whichever incarnation
// wrote them: two tables that hold the same ones have the same digest. It is kept
// with each change, so that to ask for it costs nothing however large the table is,
// and in parts, so that a difference is found without looking at everything.
//
// A part is the wrapping sum of a keyed hash of each of its records: of the key,
// the version, the owner, and of the value what all nodes hold alike. The order
// in which records came does not matter. A deleted key is one that is not there: a
// tombstone that one node has forgotten and another has not makes no difference.

// DigestBuckets is the number of parts of a digest.
const DigestBuckets = 1024

// bucketShift leaves of a key's hash the number of its bucket.
const bucketShift = 64 - 10

// maxFew is the number of buckets with records up to which a digest is kept as a short list: a
// node with few records costs little memory, and there may be thousands.
const maxFew = 32

// Digest is what a table holds of one node.
type Digest struct {
	// Sum covers keys, versions, owners and values. It compares with the sum of a
	// table that has the same DigestScope and layout, and with no other.
	Sum uint64
	// Loose covers versions and owners alone, which every layout has in common.
	Loose uint64
	// Live is the number of records.
	Live int
}

// Buckets are the parts of a Digest's Sum.
type Buckets [DigestBuckets]uint64

// BucketSet is a set of buckets, bucket b being bit b%64 of word b/64.
type BucketSet [DigestBuckets / 64]uint64

// Add puts a bucket into the set.
func (s *BucketSet) Add(b int) { s[b/64] |= 1 << (b % 64) }

// Has reports whether a bucket is in the set.
func (s *BucketSet) Has(b int) bool { return s[b/64]&(1<<(b%64)) != 0 }

// Len returns how many buckets are in the set.
func (s *BucketSet) Len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// digester makes digests. What it hashes with comes from Options.DigestKey.
type digester struct {
	keySeed, versionSeed, contentSeed uint64

	keyMask []uint64 // nil: all
	masked  []byte   // scratch, for a key under its mask: whole words
	mask    []byte   // of values
	pairs   []pair   // the same, with what to hash by

	nodes map[string]*nodeDigest
	audit audit
	// Read without the table's lock.
	id, scope atomic.Uint64

	// The hash of the key of a slot whose record is being changed: it leaves its
	// digest and enters one again, with the same key.
	slot uint32
	hash uint64
}

// pair is what two words of a value, 16 bytes, are hashed with.
type pair struct {
	mask, key [2]uint64
}

// nodeDigest is the digest of one node, as kept.
type nodeDigest struct {
	counted
	audit  *counted // nil but during an audit
	failed int      // of the node's records, those that the writer could not write
}

// checkDigest returns an error if the options' masks do not fit.
func (o *Options) checkDigest() error {
	switch {
	case o.ComparedKey != nil && len(o.ComparedKey) != o.KeySize:
		return fmt.Errorf("create table with a mask of %d bytes for keys of %d: %w", len(o.ComparedKey), o.KeySize, ErrOptions)
	case o.Compared == nil:
		return nil
	case len(o.Compared) != o.ValueSize:
		return fmt.Errorf("create table with a mask of %d bytes for values of %d: %w", len(o.Compared), o.ValueSize, ErrOptions)
	}
	for _, mask := range [][]byte{o.Significant, o.Carried} {
		for i := range mask {
			// It would change without a version that tells.
			if o.Compared[i]&^mask[i] != 0 {
				return fmt.Errorf("create table that compares what is not significant, or not carried, in byte %d: %w", i, ErrOptions)
			}
		}
	}
	return nil
}

// compared returns the mask of values.
func (o *Options) compared() []byte {
	if o.Compared != nil {
		return o.Compared
	}
	mask := slices.Repeat([]byte{0xff}, o.ValueSize)
	for _, m := range [][]byte{o.Significant, o.Carried} {
		for i := range m {
			mask[i] &= m[i]
		}
	}
	return mask
}

func (d *digester) init(o *Options) {
	secret := sha256.Sum256(append([]byte("mapsync digest\x00"), o.DigestKey...))
	random := rand.NewChaCha8(secret)
	d.keySeed, d.versionSeed, d.contentSeed = random.Uint64(), random.Uint64(), random.Uint64()
	d.id.Store(random.Uint64())
	scopeSeed := random.Uint64()
	d.maskKeys(o.ComparedKey)
	mask := o.compared()
	d.mask = mask
	padded := append(slices.Clone(mask), make([]byte, 16)...)
	for at := 0; at < len(mask); at += 16 {
		d.pairs = append(d.pairs, pair{
			mask: [2]uint64{binary.LittleEndian.Uint64(padded[at:]), binary.LittleEndian.Uint64(padded[at+8:])},
			key:  [2]uint64{random.Uint64(), random.Uint64()},
		})
	}
	h := xxh3.NewSeed(scopeSeed)
	for _, part := range [][]byte{{byte(min(len(o.ComparedKey), 1))}, o.ComparedKey, mask} {
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = h.Write(part)
	}
	d.scope.Store(h.Sum64())
	d.nodes = make(map[string]*nodeDigest)
}

// maskKeys has bits of keys left out. Most keys have none of that kind.
func (d *digester) maskKeys(mask []byte) {
	if !slices.ContainsFunc(mask, func(b byte) bool { return b != 0xff }) {
		return
	}
	for at := 0; at < len(mask); at += 8 {
		var word [8]byte
		copy(word[:], mask[at:])
		d.keyMask = append(d.keyMask, binary.LittleEndian.Uint64(word[:]))
	}
	d.masked = make([]byte, 8*len(d.keyMask))
}

// of returns the digest of a node.
func (d *digester) of(node string) *nodeDigest {
	if n := d.nodes[node]; n != nil {
		return n
	}
	n := &nodeDigest{}
	if d.audit.on {
		n.audit = &counted{}
	}
	d.nodes[strings.Clone(node)] = n
	return n
}

// owner returns the hash of an owner.
func (d *digester) owner(o Owner) uint64 {
	return xxh3.HashStringSeed(o.Node, d.versionSeed^o.Incarnation*goldenRatio)
}

const goldenRatio = 0x9e3779b97f4a7c15

// fold multiplies two numbers and mixes the halves of the product.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// key returns the hash of a key.
func (d *digester) key(key []byte) uint64 {
	if d.keyMask != nil {
		n := copy(d.masked, key)
		for i, m := range d.keyMask {
			word := d.masked[8*i:][:8]
			binary.LittleEndian.PutUint64(word, binary.LittleEndian.Uint64(word)&m)
		}
		key = d.masked[:n]
	}
	return xxh3.HashSeed(key, d.keySeed)
}

// content returns the hash of what of a value is compared: the sum of the products
// of neighbouring words, each with a secret added (NH, as in UMAC). It is most of what
// a digest costs, so it is made in two sums, and in steps of a cache line.
func (d *digester) content(value []byte) uint64 {
	pairs := d.pairs
	a, b := d.contentSeed, uint64(0)
	for len(value) >= 64 && len(pairs) >= 4 {
		p, v := (*[4]pair)(pairs), (*[64]byte)(value)
		a += p[0].product((*[16]byte)(v[:16]))
		b += p[1].product((*[16]byte)(v[16:32]))
		a += p[2].product((*[16]byte)(v[32:48]))
		b += p[3].product((*[16]byte)(v[48:]))
		value, pairs = value[64:], pairs[4:]
	}
	for len(value) >= 16 && len(pairs) > 0 {
		a += pairs[0].product((*[16]byte)(value))
		value, pairs = value[16:], pairs[1:]
	}
	if len(value) > 0 {
		var rest [16]byte
		copy(rest[:], value)
		b += pairs[0].product(&rest)
	}
	return a + b
}

// product hashes 16 bytes.
func (p *pair) product(v *[16]byte) uint64 {
	return fold(binary.LittleEndian.Uint64(v[:8])&p.mask[0]+p.key[0], binary.LittleEndian.Uint64(v[8:])&p.mask[1]+p.key[1])
}

// hashed is one record in a digest.
type hashed struct {
	bucket     uint64
	sum, loose uint64
}

// digestOf hashes a record, whose key's hash it takes from the change before if
// that was of the same slot.
func (t *Table) digestOf(s uint32, m *meta, o *ownerInfo) hashed {
	d := &t.digester
	at := int(s&t.slab.mask) * t.stride
	entry := t.chunks[s>>t.shift].data[at : at+t.stride]
	if d.slot != s {
		d.slot, d.hash = s, d.key(entry[:t.keySize])
	}
	loose := fold(uint64(m.version)^d.versionSeed, o.hash)
	return hashed{d.hash >> bucketShift, fold(loose^d.hash, d.content(entry[t.keySize:])^d.keySeed), loose}
}

// digested reports whether a record is part of its owner's digest.
func (m *meta) digested() bool { return m.version != 0 && m.live() }

// leave takes a record out of its owner's digest. It must come before a change of
// its content, version or owner, and join after it.
func (t *Table) leave(s uint32) {
	m := t.meta(s)
	if !m.digested() {
		return
	}
	o := &t.owners.list[m.owner]
	h, n := t.digestOf(s, m, o), o.digest
	n.counted.subtract(h)
	if n.audit != nil && s < t.digester.audit.slot {
		n.audit.subtract(h)
	}
}

// withdraw is leave for a record that does not come back.
func (t *Table) withdraw(s uint32) {
	t.leave(s)
	t.digester.slot = 0
}

// join enters a record into its owner's digest.
func (t *Table) join(s uint32) {
	m := t.meta(s)
	if m.digested() {
		o := &t.owners.list[m.owner]
		h, n := t.digestOf(s, m, o), o.digest
		n.counted.add(h)
		if n.audit != nil && s < t.digester.audit.slot {
			n.audit.add(h)
		}
	}
	t.digester.slot = 0
}

func (d *digester) bytes() uint64 {
	const each = 160 // with its entry in the map
	n := uint64(len(d.nodes))*each + uint64(len(d.pairs))*48
	for _, c := range d.nodes {
		n += c.bytes()
		if c.audit != nil {
			n += each + c.audit.bytes()
		}
	}
	return n
}

// Digest returns the digest of the records that the table holds of a node, and its
// parts in buckets unless that is nil.
func (tx *Tx) Digest(node string, buckets *Buckets) (g Digest) {
	n := tx.t.digester.nodes[node]
	if n == nil {
		if buckets != nil {
			*buckets = Buckets{}
		}
		return g
	}
	g.Sum = n.sum()
	g.Loose, g.Live = n.loose, n.live
	if buckets != nil {
		n.copyTo(buckets)
	}
	return g
}

// DigestOfNodes returns the digest of the records that the table holds of all nodes for which
// include returns true, and its parts in buckets unless that is nil. It calls include once for each
// node that the table keeps a digest of, in no order. A node with few records costs little.
func (tx *Tx) DigestOfNodes(include func(node string) bool, buckets *Buckets) (g Digest) {
	if buckets != nil {
		*buckets = Buckets{}
	}
	for node, n := range tx.t.digester.nodes {
		if !include(node) {
			continue
		}
		g.Loose, g.Live = g.Loose+n.loose, g.Live+n.live
		if buckets == nil {
			g.Sum += n.sum()
		} else {
			g.Sum += n.addTo(buckets)
		}
	}
	return g
}

// DigestID returns a number that stands for Options.DigestKey without telling it:
// digests of tables with another one do not compare.
func (t *Table) DigestID() uint64 { return t.digester.id.Load() }

// DigestScope returns a number that tables have in common whose digests are made
// with the same key and leave the same parts of keys and values out.
func (t *Table) DigestScope() uint64 { return t.digester.scope.Load() }

// Bucket returns in which part of a digest a key is.
func (tx *Tx) Bucket(key []byte) int { return tx.t.bucket(key) }

func (t *Table) bucket(key []byte) int { return int(t.digester.key(key) >> bucketShift) }

// Alike reports whether two values are the same in all that digests cover.
func (t *Table) Alike(a, b []byte) bool {
	return len(a) == t.opt.ValueSize && len(b) == t.opt.ValueSize && equalUnder(t.digester.mask, a, b)
}

func (t *Table) alike(s uint32, value []byte) bool {
	return equalUnder(t.digester.mask, t.value(s), value)
}
