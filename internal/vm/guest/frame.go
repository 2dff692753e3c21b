// Package guest is the guest side of the virtual machine. Its init process mounts file systems, loads
// modules and runs one program. It sends the program's output, exit status and files to the host. The
// package also defines the framing between guest and host.
package guest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// FrameType is the type of a frame's payload.
type FrameType byte

// The frame types. All except FrameSignal go from the guest to the host.
const (
	FrameHello  FrameType = 'h' // the machine has booted: JSON of Hello
	FrameStdout FrameType = 'o' // bytes of the program's standard output
	FrameStderr FrameType = 'e' // bytes of the program's standard error
	FrameFile   FrameType = 'f' // one byte, the index into Spec.Outs, then a piece of its tar stream
	FrameAlive  FrameType = 'a' // an empty sign of life, sent each AliveInterval
	FrameExit   FrameType = 'x' // the last frame: JSON of Exit
	FrameSignal FrameType = 's' // one byte: send the program this signal
)

// AliveInterval is the time between two FrameAlive.
const AliveInterval = 5 * time.Second

// MaxPayload is the maximum size of a frame's payload in bytes.
const MaxPayload = 64 << 10

// PortName is the name of the virtio-serial port that carries the frames.
const PortName = "vmrun"

// SpecPath is the path of the guest's [Spec], in JSON.
const SpecPath = "/vm/spec.json"

// Spec configures the guest.
type Spec struct {
	// Args is the program, by absolute path, and its arguments.
	Args []string
	// Env is the program's complete environment.
	Env []string
	// Dir is the program's working directory. The guest creates it if it is missing.
	Dir string
	// Dirs are additional directories that the guest creates.
	Dirs []string
	// Modules are the module files to load, in load order.
	Modules []string
	// Merge merges standard error into standard output, in order.
	Merge bool
	// Outs are the files and directories that the guest sends at the end.
	Outs []string
}

// Hello is the guest's first message.
type Hello struct {
	// Release is the kernel release as printed by uname -r.
	Release string
}

// Exit is the guest's last message.
type Exit struct {
	// Code is the program's exit status, or 128 + the signal that ended it.
	Code int
	// Signal is the name of the signal that ended the program, or "".
	Signal string
	// Err is the reason why the program could not be started, or "".
	Err string
}

// Conn writes and reads frames. Write is safe for concurrent use. Only one goroutine may read.
type Conn struct {
	rw  io.ReadWriter
	mu  sync.Mutex
	in  []byte
	out []byte
}

// NewConn returns a Conn over rw. The caller keeps ownership of rw.
func NewConn(rw io.ReadWriter) *Conn { return &Conn{rw: rw} }

const headerSize = 5

// Write sends one frame in one write. The payload has at most [MaxPayload] bytes.
func (c *Conn) Write(t FrameType, payload []byte) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("write frame %q: %d bytes, at most %d", t, len(payload), MaxPayload)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = append(c.out[:0], byte(t))
	c.out = binary.BigEndian.AppendUint32(c.out, uint32(len(payload)))
	c.out = append(c.out, payload...)
	if _, err := c.rw.Write(c.out); err != nil {
		return fmt.Errorf("write frame %q: %w", t, err)
	}
	return nil
}

// WriteJSON sends v as the JSON payload of one frame.
func (c *Conn) WriteJSON(t FrameType, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode frame %q: %w", t, err)
	}
	return c.Write(t, b)
}

// Read returns the next frame. The payload is valid until the next Read. io.EOF means that the other
// side closed the connection between frames.
func (c *Conn) Read() (FrameType, []byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(c.rw, header[:]); err != nil {
		if !errors.Is(err, io.EOF) {
			err = fmt.Errorf("read frame header: %w", err)
		}
		return 0, nil, err
	}
	t, n := FrameType(header[0]), binary.BigEndian.Uint32(header[1:])
	if n > MaxPayload {
		return 0, nil, fmt.Errorf("read frame %q: %d bytes, at most %d", t, n, MaxPayload)
	}
	if cap(c.in) < int(n) {
		c.in = make([]byte, n)
	}
	c.in = c.in[:n]
	if _, err := io.ReadFull(c.rw, c.in); err != nil {
		return 0, nil, fmt.Errorf("read frame %q: %w", t, err)
	}
	return t, c.in, nil
}

// Stream is an io.Writer that sends its bytes as frames of one type. Each payload begins with Prefix.
type Stream struct {
	Conn   *Conn
	Type   FrameType
	Prefix []byte
}

// Write sends p in one or more frames.
func (s Stream) Write(p []byte) (int, error) {
	const piece = MaxPayload / 2 // a virtio port accepts 32 KiB per write
	done := 0
	for done < len(p) {
		n := min(len(p)-done, piece)
		payload := append(append([]byte(nil), s.Prefix...), p[done:done+n]...)
		if err := s.Conn.Write(s.Type, payload); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}
