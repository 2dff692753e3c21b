package main

import (
	"time"

	"google.golang.org/grpc/mem"

	"mapsync/syncd/replicate"
	"mapsync/syncd/table"
)

// codecPart is the number of changes that are made before they are encoded and merged. It is the
// highest lag of a stream that keeps up.
const codecPart = 1 << 14

// codecSteps measures the two ends of a stream without the stream between them.
func codecSteps(n, rounds int) ([]Step, error) {
	names := []string{
		"encode, new entry", "decode and merge, new entry",
		"encode, update", "decode and merge, update",
	}
	all := make([][]Sample, len(names))
	for range rounds {
		c, err := newCodec(n)
		if err != nil {
			return nil, err
		}
		for generation := range 2 {
			encode, merge, err := c.run(generation)
			if err != nil {
				return nil, err
			}
			all[2*generation] = append(all[2*generation], encode)
			all[2*generation+1] = append(all[2*generation+1], merge)
		}
		c.encoding.Close()
	}
	steps := make([]Step, len(names))
	for i, name := range names {
		steps[i] = Step{"codec: " + name, median(all[i])}
	}
	return steps, nil
}

// codec is two tables, an encoder of the first table's deltas, and a decoder that merges them into
// the second.
type codec struct {
	n        int
	from, to *table.Table
	encoding *replicate.StreamEncoder
	decoding *replicate.StreamDecoder
	messages [][]byte
	key      key
	value    value
}

func newCodec(n int) (*codec, error) {
	c := &codec{n: n}
	sender := table.Owner{Node: "first", Incarnation: 1}
	var err error
	if c.from, err = newTable(sender); err != nil {
		return nil, err
	}
	if c.to, err = newTable(table.Owner{Node: "second", Incarnation: 1}); err != nil {
		return nil, err
	}
	types, err := ctSchema()
	if err != nil {
		return nil, err
	}
	if c.encoding, err = replicate.NewStreamEncoder(c.from, types, 0); err != nil {
		return nil, err
	}
	c.decoding, err = replicate.NewStreamDecoder(c.to, types, sender)
	return c, err
}

// run transfers one generation in parts.
func (c *codec) run(generation int) (encode, merge Sample, err error) {
	for at := 0; at < c.n; at += codecPart {
		c.change(at, min(at+codecPart, c.n), generation)
		c.messages = c.messages[:0]
		var kept time.Duration
		cost, err := measure(c.n, func() error {
			kept, err = c.encode()
			return err
		})
		if err != nil {
			return encode, merge, err
		}
		// The time and the allocations of keeping the messages are not part of the codec's cost.
		cost.Nanoseconds -= float64(kept.Nanoseconds()) / float64(c.n)
		cost.Allocations -= float64(len(c.messages)) / float64(c.n)
		encode.add(cost)
		if cost, err = measure(c.n, c.merge); err != nil {
			return encode, merge, err
		}
		merge.add(cost)
	}
	return encode, merge, nil
}

func (c *codec) change(first, end, generation int) {
	stride := 1
	if generation > 0 {
		stride = strideOf(c.n)
	}
	c.from.Update(func(tx *table.Tx) {
		now := time.Now().UnixNano()
		for at := first; at < end; at++ {
			i := at * stride % c.n
			fillKey(c.key[:], i)
			fillValue(c.value[:], i, generation)
			tx.Local(&table.Change{Key: c.key[:], Value: c.value[:], Time: now})
		}
	})
}

// encode keeps all messages. It returns the time that keeping them took.
func (c *codec) encode() (kept time.Duration, err error) {
	keep := func(message mem.BufferSlice) {
		began := time.Now()
		whole := make([]byte, message.Len())
		message.CopyTo(whole)
		c.messages = append(c.messages, whole)
		kept += time.Since(began)
	}
	for more := true; more && err == nil; {
		more, err = c.encoding.Next(keep)
	}
	return kept, err
}

func (c *codec) merge() error {
	for _, m := range c.messages {
		if err := c.decoding.Merge(m); err != nil {
			return err
		}
	}
	return nil
}
