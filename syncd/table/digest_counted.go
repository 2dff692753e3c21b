package table

// counted is a digest's sums, in a form that costs little memory for a node with few records.
type counted struct {
	few   []part   // up to maxFew buckets, while all is nil
	all   *Buckets // nil: few has them
	loose uint64
	live  int
}

// part is the sum of one bucket.
type part struct {
	bucket, sum uint64
}

// bucket returns the place of a bucket's sum.
func (c *counted) bucket(b uint64) *uint64 {
	if c.all != nil {
		return &c.all[b%DigestBuckets]
	}
	for i := range c.few {
		if c.few[i].bucket == b {
			return &c.few[i].sum
		}
	}
	if len(c.few) < maxFew {
		c.few = append(c.few, part{bucket: b})
		return &c.few[len(c.few)-1].sum
	}
	all := new(Buckets)
	c.copyTo(all)
	c.few, c.all = nil, all
	return &all[b%DigestBuckets]
}

// copyTo writes all sums to buckets.
func (c *counted) copyTo(buckets *Buckets) {
	if c.all != nil {
		*buckets = *c.all
		return
	}
	*buckets = Buckets{}
	for _, p := range c.few {
		buckets[p.bucket%DigestBuckets] = p.sum
	}
}

// addTo adds all sums to buckets, and returns the sum over all buckets.
func (c *counted) addTo(buckets *Buckets) (sum uint64) {
	if c.all != nil {
		for b, s := range c.all {
			buckets[b] += s
			sum += s
		}
	}
	for _, p := range c.few {
		buckets[p.bucket%DigestBuckets] += p.sum
		sum += p.sum
	}
	return sum
}

// sum returns the sum over all buckets.
func (c *counted) sum() (sum uint64) {
	if c.all != nil {
		for _, s := range c.all {
			sum += s
		}
	}
	for _, p := range c.few {
		sum += p.sum
	}
	return sum
}

func (c *counted) bytes() uint64 {
	n := uint64(cap(c.few)) * 16
	if c.all != nil {
		n += 8 * DigestBuckets
	}
	return n
}

func (c *counted) add(h hashed) {
	*c.bucket(h.bucket) += h.sum
	c.loose += h.loose
	c.live++
}

func (c *counted) subtract(h hashed) {
	*c.bucket(h.bucket) -= h.sum
	c.loose -= h.loose
	c.live--
}
