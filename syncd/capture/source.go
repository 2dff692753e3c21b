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

// batchEvents is the maximum number of events in a batch. It is large enough to amortise the lock,
// and small enough to keep the latency of the first event low.
const batchEvents = 512

// source is a buffer of events. read blocks until at least one event is available, then appends the
// available events to b, at most batchEvents. The samples stay valid until the next read. read
// returns os.ErrClosed after close.
type source interface {
	read(b *batch) error
	close() error
}

// batch is the result of one read.
type batch struct {
	samples [][]byte
	lost    uint64 // events that the kernel reports as not delivered
}

// openSource opens the buffer of kind o.Buffer, which is one of maps.
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

// read waits for a first event, then reads the events of all CPUs once, so that the caller can sort
// them by time.
func (s *perfSource) read(b *batch) error {
	s.reader.SetDeadline(time.Time{})
	for i := 0; i < len(s.records); {
		rec := &s.records[i]
		err := s.reader.ReadInto(rec)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && i > 0:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			// The reader keeps the deadline of the batch before, if that batch was full, until it has read
			// all events of that time.
			continue
		case err != nil:
			return fmt.Errorf("read perf buffer: %w", err)
		}
		b.lost += rec.LostSamples
		if rec.LostSamples == 0 {
			b.samples = append(b.samples, rec.RawSample)
		}
		if i == 0 {
			s.reader.SetDeadline(time.Unix(1, 0))
		}
		i++
	}
	return nil
}

func (s *perfSource) close() error { return s.reader.Close() }
