package table

import "math/bits"

// BucketSet is a set of buckets. Bucket b is bit b%64 of word b/64.
type BucketSet [DigestBuckets / 64]uint64

// AllBuckets returns the set of all buckets.
func AllBuckets() *BucketSet {
	s := new(BucketSet)
	for i := range s {
		s[i] = ^uint64(0)
	}
	return s
}

// Add adds a bucket to the set.
func (s *BucketSet) Add(b int) { s[b/64] |= 1 << (b % 64) }

// Has reports whether a bucket is in the set.
func (s *BucketSet) Has(b int) bool { return s[b/64]&(1<<(b%64)) != 0 }

// Len returns the number of buckets in the set.
func (s *BucketSet) Len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}
