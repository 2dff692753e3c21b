package wire

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// SentFrame is an encoded message. Sending it passes its buffers to gRPC. The owner of a frame that is
// not sent must free it. It belongs to one goroutine.
type SentFrame struct {
	// data is nil once the message was sent or freed.
	data mem.BufferSlice
}

// Len returns the size of the message in bytes; 0 once it was sent or freed.
func (out *SentFrame) Len() int { return out.data.Len() }

// Buffers returns the buffers of the message. The frame owns them. They are valid until the message is
// sent or freed.
func (out *SentFrame) Buffers() mem.BufferSlice { return out.data }

// Free releases the buffers of a message that is not sent. It may be called more than once.
func (out *SentFrame) Free() {
	out.data.Free()
	out.data = nil
}

// ReceivedFrame is a received message that is still encoded. The zero value holds no message. A stream
// reuses one ReceivedFrame for all messages. It belongs to one goroutine.
type ReceivedFrame struct {
	// buf is nil if the frame holds no message. It is valid until Free or the next Unmarshal.
	buf mem.Buffer
}

// Bytes returns the encoded message, which is valid until Free or the next receive. The frame must hold
// a message.
func (in *ReceivedFrame) Bytes() []byte { return in.buf.ReadOnlyData() }

// Free releases the message. It may be called more than once.
func (in *ReceivedFrame) Free() {
	if in.buf != nil {
		in.buf.Free()
		in.buf = nil
	}
}

// Codec is a codec for gRPC: it implements encoding.CodecV2. It passes a SentFrame and a ReceivedFrame
// through without a copy. All other messages go to gRPC's codec for protobuf, whose name it uses: both
// formats are the same on the wire. It is safe for concurrent use.
type Codec struct {
	// stock is gRPC's codec for protobuf.
	stock encoding.CodecV2
}

// NewCodec returns a Codec on top of gRPC's codec for protobuf.
func NewCodec() Codec {
	return Codec{encoding.GetCodecV2(proto.Name)}
}

// Name returns the name of gRPC's codec for protobuf. Peers therefore see the usual content type.
func (c Codec) Name() string { return c.stock.Name() }

// Marshal returns the buffers of a SentFrame, which the caller then owns. It fails if the frame was sent
// or freed before. gRPC releases them once it has written the message.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	out, ok := v.(*SentFrame)
	if !ok {
		return c.stock.Marshal(v)
	}
	data := out.data
	if data == nil {
		return nil, fmt.Errorf("send a message that was sent already")
	}
	out.data = nil
	return data, nil
}

// Unmarshal stores a reference to the data in a ReceivedFrame, and releases the frame's previous buffer.
// A message in one piece is not copied. One in several pieces is copied into a pooled buffer.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*ReceivedFrame)
	if !ok {
		return c.stock.Unmarshal(data, v)
	}
	in.Free()
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
// buffer. If b has outgrown the pooled buffer, that one goes back to the pool at once. The caller must
// not use b or pooled afterwards.
func newMemBuffer(b []byte, pooled *[]byte) mem.Buffer {
	if cap(b) != cap(*pooled) {
		buffers.Put(pooled)
		return mem.SliceBuffer(slices.Clip(b))
	}
	*pooled = b
	return mem.NewBuffer(pooled, &buffers)
}
