package trace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf/ringbuf"

	"mapsync/docs/examples/bundling/bpf"
)

// receive adds the events of ended connections to the sums until ctx ends.
func (t *tracer) receive(ctx context.Context) error {
	events, err := ringbuf.NewReader(t.closed)
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	defer events.Close()
	defer context.AfterFunc(ctx, func() { _ = events.Flush() })() // it fails only if the reader is closed
	var event struct {
		Key  connectionKey
		Flow bpf.TracerFlow
	}
	for record := (ringbuf.Record{}); ; {
		err := events.ReadInto(&record)
		if errors.Is(err, ringbuf.ErrFlushed) { // no event is left
			return nil
		}
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		if len(record.RawSample) < binary.Size(event) {
			return errors.New("read events: an event is too short")
		}
		decode(record.RawSample, &event.Key, &event.Flow)
		if len(t.flowSums) >= maxConnections {
			clear(t.flowSums)
		}
		t.add(&event.Key.Flow, &event.Flow)
		t.events++
	}
}

// decode reads an event: struct connection_end of bpf/flow.h.
func decode(b []byte, k *connectionKey, f *bpf.TracerFlow) {
	order := binary.NativeEndian
	k.Flow.From, k.Flow.To = order.Uint32(b), order.Uint32(b[4:])
	k.Flow.Port, k.Flow.Dir, k.Flow.Proto = order.Uint16(b[8:]), b[10], b[11]
	k.ClientPort = order.Uint16(b[12:])
	b = b[connectionKeyBytes:]
	f.Connections, f.Messages, f.Sent, f.Received = order.Uint64(b), order.Uint64(b[8:]), order.Uint64(b[16:]), order.Uint64(b[24:])
}
