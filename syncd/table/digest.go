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

// A digest summarises the live records that a node owns, of all its incarnations. Two tables with the same
// records of a node have the same digest of that node. Each change updates the digest, so reading it costs
// the same for every table size. A digest consists of buckets, so that peers find a difference without
// comparing all records.
//
// A bucket is the wrapping sum of a keyed hash of each of its records. The hash covers the key, the
// version, the owner, and the part of the value that is equal on all nodes. The sum does not depend on the
// order in which records arrived. Digests do not cover tombstones, so a tombstone that only one of two
// nodes has forgotten makes no difference.

// DigestBuckets is the number of buckets of a digest.
const DigestBuckets = 1024

// bucketShift is the shift that reduces a key's hash to the number of its bucket.
const bucketShift = 64 - 10

// maxSparse is the highest number of non-empty buckets for which a digest is stored as a short list. A
// cluster may have thousands of nodes with few records, and a list costs little memory for each.
const maxSparse = 32

// Digest is the digest of the records of a node.
type Digest struct {
	// Sum covers keys, versions, owners and values. Only sums of tables with the same DigestScope and
	// layout are comparable.
	Sum uint64
	// VersionSum covers versions and owners only. It is comparable between all layouts.
	VersionSum uint64
	// Live is the number of records.
	Live int
}

// Buckets are the sums of the buckets of a Digest. They add up to Digest.Sum.
type Buckets [DigestBuckets]uint64

// digester computes and stores the digests of a table. The lock of the table protects it, except for id and
// scope. All seeds are derived from Options.DigestKey.
type digester struct {
	// keySeed seeds the hash of keys, versionSeed that of versions and owners, and contentSeed that of
	// values. They change only in SetDigestKey.
	keySeed, versionSeed, contentSeed uint64

	// keyMask is Options.ComparedKey in words, padded with zero bits. Nil: digests cover all bits of a key.
	keyMask []uint64
	// masked is the buffer for a masked key, of the length of keyMask in whole words.
	masked []byte
	// mask is the mask of values, of the size of a value. See Options.compared.
	mask []byte
	// variants are the pairs of each variant of values, with the same secrets; empty without variants.
	variants [][]wordPair
	variant  func(key, value []byte) int
	// meanings is Options.Meanings.
	meanings Meanings
	// pairs is mask in steps of 16 bytes, with the secrets to hash by. The last element is padded with zero
	// bits.
	pairs []wordPair

	// nodes has the digest of each node that has an owner id, by node name.
	nodes map[string]*nodeDigest
	// audit is the state of the current audit.
	audit audit
	// id and scope are the results of DigestID and DigestScope. They are read without the table's lock.
	id, scope atomic.Uint64

	// slot is the slot of the record that is being changed, 0 outside a change of a digest.
	slot uint32
	// hash is the hash of the key in slot. A change removes the record from its digest and adds it again
	// with the same key, which is hashed only once.
	hash uint64
}

// wordPair is the mask and the secret for two words of a value, 16 bytes.
type wordPair struct {
	// mask selects the bits that digests cover. key is added to the masked words.
	mask, key [2]uint64
}

// nodeDigest is the stored digest of one node. The lock of the table protects it.
type nodeDigest struct {
	// digestSums are the sums of all live, versioned records of the node.
	digestSums
	// audit has the sums of the records below audit.slot that the current audit computed. Nil: no audit is
	// in progress.
	audit *digestSums
	// notHeld is the number of records of the node with flagNotHeld, and evicted that of those with lacksEvicted.
	notHeld, evicted int
	// ids is the number of owner ids of the node.
	ids int
}

// checkDigest returns an error that wraps ErrOptions if the options' masks do not match.
func (o *Options) checkDigest() error {
	switch {
	case o.ComparedKey != nil && len(o.ComparedKey) != o.KeySize:
		return fmt.Errorf("create table: key mask has %d bytes, keys have %d: %w", len(o.ComparedKey), o.KeySize, ErrOptions)
	case o.Compared == nil:
		return nil
	case len(o.Compared) != o.ValueSize:
		return fmt.Errorf("create table: value mask has %d bytes, values have %d: %w", len(o.Compared), o.ValueSize, ErrOptions)
	}
	for _, mask := range [][]byte{o.Significant, o.Carried} {
		for i := range mask {
			// Such a bit would change without a new version.
			if o.Compared[i]&^mask[i] != 0 {
				return fmt.Errorf("create table: compared mask exceeds the significant or carried mask in byte %d: %w", i, ErrOptions)
			}
		}
	}
	return nil
}

// compared returns the mask of the value bits that digests cover, of the size of a value. By default that
// is all significant and carried bits.
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

// init derives all secrets from Options.DigestKey and removes all digests.
func (d *digester) init(o *Options) {
	secret := sha256.Sum256(append([]byte("mapsync digest\x00"), o.DigestKey...))
	random := rand.NewChaCha8(secret)
	d.keySeed, d.versionSeed, d.contentSeed = random.Uint64(), random.Uint64(), random.Uint64()
	d.id.Store(random.Uint64())
	scopeSeed := random.Uint64()
	d.maskKeys(o.ComparedKey)
	mask := o.compared()
	d.mask, d.meanings = mask, o.Meanings
	for range (len(mask) + 15) / 16 {
		d.pairs = append(d.pairs, wordPair{key: [2]uint64{random.Uint64(), random.Uint64()}})
	}
	setMask(d.pairs, mask)
	parts := [][]byte{{byte(min(len(o.ComparedKey), 1))}, o.ComparedKey, mask}
	if o.Variants != nil {
		d.variant = o.Variants.Of
		for _, m := range o.Variants.Masks {
			pairs := slices.Clone(d.pairs)
			setMask(pairs, m.Compared)
			d.variants, parts = append(d.variants, pairs), append(parts, m.Compared)
		}
	}
	h := xxh3.NewSeed(scopeSeed)
	for _, part := range parts {
		_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = h.Write(part)
	}
	d.scope.Store(h.Sum64())
	d.nodes = make(map[string]*nodeDigest)
}

// setMask sets the masks of pairs.
func setMask(pairs []wordPair, mask []byte) {
	padded := append(slices.Clone(mask), make([]byte, 16)...)
	for i := range pairs {
		pairs[i].mask = [2]uint64{binary.LittleEndian.Uint64(padded[16*i:]), binary.LittleEndian.Uint64(padded[16*i+8:])}
	}
}

// maskKeys sets up the mask of keys. If the mask has all bits, keys are hashed without a mask.
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

// forNode returns the digest of a node and creates it if necessary.
func (d *digester) forNode(node string) *nodeDigest {
	if n := d.nodes[node]; n != nil {
		return n
	}
	n := &nodeDigest{}
	if d.audit.on {
		n.audit = &digestSums{}
	}
	d.nodes[strings.Clone(node)] = n
	return n
}

// hashOwner returns the hash of an owner, seeded with versionSeed.
func (d *digester) hashOwner(o Owner) uint64 {
	return xxh3.HashStringSeed(o.Node, d.versionSeed^o.Incarnation*goldenRatio)
}

// goldenRatio is 2^64 divided by the golden ratio. It spreads incarnations over the seeds.
const goldenRatio = 0x9e3779b97f4a7c15

// fold multiplies two numbers and returns the exclusive or of the two halves of the product.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// hashKey returns the hash of the compared bits of a key, seeded with keySeed. It uses d.masked.
func (d *digester) hashKey(key []byte) uint64 {
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

// hashValue returns the hash of the compared bits of the value of a key. It is the sum of the products of neighbouring
// words, with a secret added to each word (NH, as in UMAC). It is the largest part of the cost of a digest.
// It therefore uses two sums, and steps of one cache line.
func (d *digester) hashValue(key, value []byte) uint64 {
	pairs := d.pairs
	if d.variants != nil {
		pairs = d.variants[d.variant(key, value)]
	}
	a, b := d.contentSeed, uint64(0)
	if d.meanings != nil {
		b = fold(d.meanings.Sum(key, value)^d.contentSeed, goldenRatio)
	}
	for len(value) >= 64 && len(pairs) >= 4 {
		p, v := (*[4]wordPair)(pairs), (*[64]byte)(value)
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

// product hashes 16 bytes of a value.
func (p *wordPair) product(v *[16]byte) uint64 {
	return fold(binary.LittleEndian.Uint64(v[:8])&p.mask[0]+p.key[0], binary.LittleEndian.Uint64(v[8:])&p.mask[1]+p.key[1])
}

// recordHash is the contribution of one record to a digest.
type recordHash struct {
	// bucket is the number of the record's bucket.
	bucket uint64
	// sum is added to the bucket. version is added to versionSum.
	sum, version uint64
}

// digestOf returns the hash of a record. It reuses the hash of the key if the previous change was of the
// same slot.
func (t *Table) digestOf(s uint32, m *meta, o *ownerInfo) recordHash {
	d := &t.digester
	at := int(s&t.slab.mask) * t.stride
	entry := t.chunks[s>>t.shift].data[at : at+t.stride]
	if d.slot != s {
		d.slot, d.hash = s, d.hashKey(entry[:t.keySize])
	}
	versionSum := fold(uint64(m.version)^d.versionSeed, o.hash)
	return recordHash{d.hash >> bucketShift, fold(versionSum^d.hash, d.hashValue(entry[:t.keySize], entry[t.keySize:])^d.keySeed), versionSum}
}

// inDigest reports whether a record is part of its owner's digest: it is live and has a version.
func (m *meta) inDigest() bool { return m.version != 0 && m.live() }

// removeFromDigest removes a record from its owner's digest. The caller calls it before it changes the
// record's content, version or owner, and calls addToDigest after that.
func (t *Table) removeFromDigest(s uint32) {
	m := t.meta(s)
	if !m.inDigest() {
		return
	}
	o := &t.owners.list[m.owner]
	h, n := t.digestOf(s, m, o), o.digest
	n.digestSums.subtract(h)
	if n.audit != nil && s < t.digester.audit.slot {
		n.audit.subtract(h)
	}
}

// dropFromDigest removes a record from its owner's digest for good.
func (t *Table) dropFromDigest(s uint32) {
	t.removeFromDigest(s)
	t.digester.slot = 0
}

// addToDigest adds a record to its owner's digest, and to that of the current audit.
func (t *Table) addToDigest(s uint32) {
	m := t.meta(s)
	if m.inDigest() {
		o := &t.owners.list[m.owner]
		h, n := t.digestOf(s, m, o), o.digest
		n.digestSums.add(h)
		if n.audit != nil && s < t.digester.audit.slot {
			n.audit.add(h)
		}
	}
	t.digester.slot = 0
}

// bytes returns the memory of all digests in bytes.
func (d *digester) bytes() uint64 {
	const each = 160 // bytes of a nodeDigest and its map entry
	n := uint64(len(d.nodes))*each + uint64(len(d.pairs))*48
	for _, c := range d.nodes {
		n += c.bytes()
		if c.audit != nil {
			n += each + c.audit.bytes()
		}
	}
	return n
}

// Digest returns the digest of the records of a node in the table. It writes the sums of the buckets to
// buckets unless that is nil.
func (tx *Tx) Digest(node string, buckets *Buckets) (g Digest) {
	n := tx.t.digester.nodes[node]
	if n == nil {
		if buckets != nil {
			*buckets = Buckets{}
		}
		return g
	}
	g.Sum = n.sum()
	g.VersionSum, g.Live = n.versionSum, n.live
	if buckets != nil {
		n.copyTo(buckets)
	}
	return g
}

// DigestOfNodes returns the digest of the records of all nodes for which include returns true. It writes
// the sums of the buckets to buckets unless that is nil. It calls include once for each node that the table
// keeps a digest of, in no particular order. A node with few records costs little.
func (tx *Tx) DigestOfNodes(include func(node string) bool, buckets *Buckets) (g Digest) {
	if buckets != nil {
		*buckets = Buckets{}
	}
	for node, n := range tx.t.digester.nodes {
		if !include(node) {
			continue
		}
		g.VersionSum, g.Live = g.VersionSum+n.versionSum, g.Live+n.live
		if buckets == nil {
			g.Sum += n.sum()
		} else {
			g.Sum += n.addTo(buckets)
		}
	}
	return g
}

// DigestID returns a number that identifies Options.DigestKey without revealing it. Digests of tables with
// different ids are not comparable.
func (t *Table) DigestID() uint64 { return t.digester.id.Load() }

// DigestScope returns a number that identifies the digest key and the compared bits of keys and values.
// Digests of tables with different scopes are not comparable.
func (t *Table) DigestScope() uint64 { return t.digester.scope.Load() }

// Bucket returns the number of the bucket of a key.
func (tx *Tx) Bucket(key []byte) int { return tx.t.bucket(key) }

// bucket returns the number of the bucket of a key.
func (t *Table) bucket(key []byte) int { return int(t.digester.hashKey(key) >> bucketShift) }
