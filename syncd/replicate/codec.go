package replicate

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// sentFrame is an encoded message. Sending it passes its buffers to gRPC.
type sentFrame struct {
	// data is nil once the message was sent.
	data mem.BufferSlice
}

// receivedFrame is a received message that is still encoded. free releases its buffer.
type receivedFrame struct {
	// buf is nil if the frame holds no message. It is valid until free or the next receive.
	buf mem.Buffer
}

// bytes returns the encoded message. It is valid until free.
func (in *receivedFrame) bytes() []byte { return in.buf.ReadOnlyData() }

// free releases the buffer. It may be called more than once.
func (in *receivedFrame) free() {
	if in.buf != nil {
		in.buf.Free()
		in.buf = nil
	}
}

// codec passes frames through without a copy. All other messages go to gRPC's protobuf codec, whose
// name it uses: both formats are the same on the wire.
type codec struct {
	encoding.CodecV2
}

// newCodec returns a codec on top of gRPC's codec for protobuf.
func newCodec() codec {
	return codec{encoding.GetCodecV2(proto.Name)}
}

// Marshal returns the buffers of a sentFrame unchanged. It fails if the frame was sent before.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	out, ok := v.(*sentFrame)
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

// Unmarshal stores a reference to the data in a receivedFrame, and releases the frame's previous buffer.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*receivedFrame)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	in.free()
	in.buf = data.MaterializeToBuffer(&buffers)
	return nil
}

// newBuffer returns an empty slice of a pooled buffer with a capacity of at least size bytes, and
// the buffer itself for newMemBuffer.
func newBuffer(size int) (b []byte, pooled *[]byte) {
	pooled = buffers.Get(size)
	return (*pooled)[:0], pooled
}

// newMemBuffer returns a gRPC buffer with the content of b, which was appended to within the pooled
// buffer. If b has outgrown the pooled buffer, that one goes back to the pool at once.
func newMemBuffer(b []byte, pooled *[]byte) mem.Buffer {
	if cap(b) != cap(*pooled) {
		buffers.Put(pooled)
		return mem.SliceBuffer(slices.Clip(b))
	}
	*pooled = b
	return mem.NewBuffer(pooled, &buffers)
}
