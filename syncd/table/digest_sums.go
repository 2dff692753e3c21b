package table

// digestSums are the sums of a digest, in a form that costs little memory for a node with few records. The
// lock of the table protects them.
type digestSums struct {
	// sparse has the buckets that had a record, in no order, at most maxSparse. It is nil once dense is
	// set.
	sparse []bucketSum
	// dense has all buckets. Nil: sparse has them.
	dense *Buckets
	// versionSum is Digest.VersionSum.
	versionSum uint64
	// live is the number of records in the sums.
	live int
}

// bucketSum is the sum of one bucket.
type bucketSum struct {
	// bucket is the number of the bucket, below DigestBuckets. sum is the wrapping sum of its records.
	bucket, sum uint64
}

// bucket returns a pointer to a bucket's sum. It is valid until the next call. It switches to the dense
// form if the list is full.
func (c *digestSums) bucket(b uint64) *uint64 {
	if c.dense != nil {
		return &c.dense[b%DigestBuckets]
	}
	for i := range c.sparse {
		if c.sparse[i].bucket == b {
			return &c.sparse[i].sum
		}
	}
	if len(c.sparse) < maxSparse {
		c.sparse = append(c.sparse, bucketSum{bucket: b})
		return &c.sparse[len(c.sparse)-1].sum
	}
	all := new(Buckets)
	c.copyTo(all)
	c.sparse, c.dense = nil, all
	return &all[b%DigestBuckets]
}

// copyTo writes the sums of all buckets to buckets.
func (c *digestSums) copyTo(buckets *Buckets) {
	if c.dense != nil {
		*buckets = *c.dense
		return
	}
	*buckets = Buckets{}
	for _, p := range c.sparse {
		buckets[p.bucket%DigestBuckets] = p.sum
	}
}

// addTo adds the sums of all buckets to buckets and returns the sum over all buckets.
func (c *digestSums) addTo(buckets *Buckets) (sum uint64) {
	if c.dense != nil {
		for b, s := range c.dense {
			buckets[b] += s
			sum += s
		}
	}
	for _, p := range c.sparse {
		buckets[p.bucket%DigestBuckets] += p.sum
		sum += p.sum
	}
	return sum
}

// sum returns the sum over all buckets.
func (c *digestSums) sum() (sum uint64) {
	if c.dense != nil {
		for _, s := range c.dense {
			sum += s
		}
	}
	for _, p := range c.sparse {
		sum += p.sum
	}
	return sum
}

// bytes returns the memory of the sums in bytes.
func (c *digestSums) bytes() uint64 {
	n := uint64(cap(c.sparse)) * 16
	if c.dense != nil {
		n += 8 * DigestBuckets
	}
	return n
}

// add adds a record.
func (c *digestSums) add(h recordHash) {
	*c.bucket(h.bucket) += h.sum
	c.versionSum += h.version
	c.live++
}

// subtract removes a record that add added with the same hash.
func (c *digestSums) subtract(h recordHash) {
	*c.bucket(h.bucket) -= h.sum
	c.versionSum -= h.version
	c.live--
}
