package wire

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// TestMarshalSentFrameTwice checks that a frame can be sent only once.
func TestMarshalSentFrameTwice(t *testing.T) {
	out := &SentFrame{data: mem.BufferSlice{mem.SliceBuffer("x")}}
	if data, err := NewCodec().Marshal(out); err != nil || data.Len() != 1 {
		t.Fatalf("marshal a sent frame: got error %v, %d bytes, want nil and 1", err, data.Len())
	}
	if data, err := NewCodec().Marshal(out); err == nil || data != nil {
		t.Error("marshal a sent frame again: got no error or some data, want an error and no data")
	}
}

// TestSentFrameIsSentOnce marshals a frame without data.
func TestSentFrameIsSentOnce(t *testing.T) {
	c := NewCodec()
	out := &SentFrame{}
	if _, err := c.Marshal(out); err == nil {
		t.Error("marshal a frame without data: got no error, want one")
	}
}

// TestUnmarshalErrors checks the errors of the codec.
func TestUnmarshalErrors(t *testing.T) {
	for _, c := range []struct {
		data []byte
		ok   bool
	}{{[]byte{0xff}, false}, {nil, true}} {
		var m mapsyncv1.SubscribeRequest
		if err := NewCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(c.data)}, &m); (err == nil) != c.ok {
			t.Errorf("unmarshal %x: got %v, want no error: %t", c.data, err, c.ok)
		}
	}
}

// TestFramesPassThroughCodec sends an encoded batch through the codec. The receiver's frame has the same
// bytes, and releases each message when the next one arrives.
func TestFramesPassThroughCodec(t *testing.T) {
	c := NewCodec()
	if c.Name() != "proto" {
		t.Errorf("name of the codec: got %q, want \"proto\"", c.Name())
	}
	var in ReceivedFrame
	in.Free() // a frame without a message
	for _, text := range []string{"first", "second"} {
		out := &SentFrame{data: mem.BufferSlice{mem.SliceBuffer(text), mem.SliceBuffer("!")}}
		if out.Len() != len(text)+1 || len(out.Buffers()) != 2 {
			t.Errorf("frame: got %d bytes in %d buffers, want %d and 2", out.Len(), len(out.Buffers()), len(text)+1)
		}
		data, err := c.Marshal(out)
		if err != nil || out.Len() != 0 {
			t.Fatalf("marshal: got error %v, %d bytes left, want nil and 0", err, out.Len())
		}
		if err := c.Unmarshal(data, &in); err != nil || string(in.Bytes()) != text+"!" {
			t.Errorf("unmarshal: got %q, error %v, want %q and no error", in.Bytes(), err, text+"!")
		}
	}
	in.Free()
	in.Free()
	dropped := &SentFrame{data: mem.BufferSlice{mem.SliceBuffer("x")}}
	dropped.Free()
	if dropped.Free(); dropped.Len() != 0 || dropped.Buffers() != nil {
		t.Error("frame that was freed: got a message, want none")
	}
}

// TestPooledBuffersOfFrames checks that a frame has the content that was appended to a pooled buffer,
// within its capacity and beyond.
func TestPooledBuffersOfFrames(t *testing.T) {
	for _, size := range []int{0, 1, 2 << 10, 2<<10 + 1, 200 << 10} {
		b, pooled := newBuffer(10)
		if len(b) != 0 || cap(b) < 10 {
			t.Fatalf("buffer: got length %d, capacity %d, want 0 and at least 10", len(b), cap(b))
		}
		for len(b) < size {
			b = append(b, byte(len(b)))
		}
		buffer := newMemBuffer(b, pooled)
		if !bytes.Equal(buffer.ReadOnlyData(), b) {
			t.Errorf("buffer of %d bytes: got other content, want the appended bytes", size)
		}
		buffer.Free()
	}
}

// TestBuffersAreReleasedOnce checks that a pooled buffer returns to the pool only once, and after its last use.
// Otherwise two batches would share it.
func TestBuffersAreReleasedOnce(t *testing.T) {
	const size = 100
	// The order of the pool is undefined, so several of its buffers are compared.
	checkNotPooled := func(t *testing.T, used []byte) {
		t.Helper()
		for range 4 {
			if b, _ := newBuffer(size); &b[:1][0] == &used[0] {
				t.Error("buffer from the pool: got one that is in use, want another")
			}
		}
	}
	t.Run("frame", func(t *testing.T) {
		b, pooled := newBuffer(size)
		frame := newMemBuffer(append(b, 1), pooled)
		defer frame.Free()
		checkNotPooled(t, frame.ReadOnlyData())
	})
	t.Run("encoder", func(t *testing.T) {
		var e Encoder
		e.body, e.pooled = newBuffer(size)
		e.Release()
		e.Release()
		used, _ := newBuffer(size)
		checkNotPooled(t, used[:1])
	})
}

// TestMessagesOfOtherTypes checks that the codec passes other messages to the stock codec.
func TestMessagesOfOtherTypes(t *testing.T) {
	c := NewCodec()
	want := &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Ack{Ack: &mapsyncv1.Ack{Map: 1, Position: 5}}}
	data, err := c.Marshal(want)
	if err != nil {
		t.Fatalf("marshal: got error %v, want nil", err)
	}
	var got mapsyncv1.SubscribeRequest
	if err := c.Unmarshal(data, &got); err != nil || !proto.Equal(&got, want) {
		t.Errorf("message: got %v, error %v, want %v", &got, err, want)
	}
}
