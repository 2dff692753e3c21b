package capture

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/perf"
	"github.com/cilium/ebpf/ringbuf"
)

// Events handed on at once. Large enough to make a lock cheap, small enough to
// keep the latency of the first one low.
const batchEvents = 512

// source is a buffer of events. read blocks until there is at least one, then
// takes what is there, up to the batch; the samples stay valid until the next
// read. It returns os.ErrClosed once closed.
type source interface {
	read(b *batch) error
	close() error
}

// batch is what one read brought.
type batch struct {
	samples [][]byte
	lost    uint64 // records that the kernel says it could not deliver
}

// openSource opens the buffer that o names, one of maps.
func openSource(o *Options, maps map[string]*ebpf.Map) (source, error) {
	if o.Buffer == BufferPerf {
		r, err := perf.NewReader(maps["perf"], o.BufferSize*os.Getpagesize())
		if err != nil {
			return nil, fmt.Errorf("open perf buffer: %w", err)
		}
		return &perfSource{reader: r}, nil
	}
	r, err := ringbuf.NewReader(maps["ring"])
	if err != nil {
		return nil, fmt.Errorf("open ring buffer: %w", err)
	}
	return &ringSource{reader: r}, nil
}

type ringSource struct {
	reader  *ringbuf.Reader
	records [batchEvents]ringbuf.Record
}

func (s *ringSource) read(b *batch) error {
	for i := range s.records {
		rec := &s.records[i]
		if err := s.reader.ReadInto(rec); err != nil {
			return fmt.Errorf("read ring buffer: %w", err)
		}
		b.samples = append(b.samples, rec.RawSample)
		if rec.Remaining == 0 {
			break
		}
	}
	return nil
}

func (s *ringSource) close() error { return s.reader.Close() }

type perfSource struct {
	reader  *perf.Reader
	records [batchEvents]perf.Record
}

// read waits for a first record, then goes once through what all CPUs have, so
// that the caller can put them into the order of their time.
func (s *perfSource) read(b *batch) error {
	s.reader.SetDeadline(time.Time{})
	for i := range s.records {
		rec := &s.records[i]
		err := s.reader.ReadInto(rec)
		if i > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read perf buffer: %w", err)
		}
		b.lost += rec.LostSamples
		if rec.LostSamples == 0 {
			b.samples = append(b.samples, rec.RawSample)
		}
		if i == 0 {
			s.reader.SetDeadline(time.Unix(1, 0))
		}
	}
	return nil
}

func (s *perfSource) close() error { return s.reader.Close() }
