package replicate

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// outbound is an encoded message. Sending it gives its buffers to gRPC.
type outbound struct {
	data mem.BufferSlice
}

// inbound is a received message, still encoded. free gives its buffer back.
type inbound struct {
	buf mem.Buffer
}

func (in *inbound) bytes() []byte { return in.buf.ReadOnlyData() }

func (in *inbound) free() {
	if in.buf != nil {
		in.buf.Free()
		in.buf = nil
	}
}

// codec passes encoded messages through and leaves all others to gRPC's own
// codec for protobuf, whose name it bears: on the wire they are the same.
type codec struct {
	encoding.CodecV2
}

func newCodec() codec {
	return codec{encoding.GetCodecV2(proto.Name)}
}

// Marshal returns the buffers of an outbound message as they are.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	out, ok := v.(*outbound)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	data := out.data
	if data == nil {
		return nil, fmt.Errorf("send a message that was sent already")
	}
	out.data = nil
	return data, nil
}

// Unmarshal keeps a reference to the data for an inbound message.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*inbound)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	in.free()
	in.buf = data.MaterializeToBuffer(&buffers)
	return nil
}

// newBuffer returns an empty slice of a pooled buffer with room for size bytes,
// and the buffer to give to seal.
func newBuffer(size int) (b []byte, pooled *[]byte) {
	pooled = buffers.Get(size)
	return (*pooled)[:0], pooled
}

// seal makes a message buffer of b, which grew within the pooled buffer (or out
// of it: then that one goes back at once).
func seal(b []byte, pooled *[]byte) mem.Buffer {
	if cap(b) != cap(*pooled) {
		buffers.Put(pooled)
		return mem.SliceBuffer(slices.Clip(b))
	}
	*pooled = b
	return mem.NewBuffer(pooled, &buffers)
}
