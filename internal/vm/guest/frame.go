// Package guest is the inside of the virtual machine: the first process that
// mounts file systems, loads modules, runs one program and hands its output,
// exit status and files to the host, and the framing that both sides speak.
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

// FrameType says what a frame carries.
type FrameType byte

// The frames. All but FrameSignal go from the guest to the host.
const (
	FrameHello  FrameType = 'h' // the machine is up: JSON of Hello
	FrameStdout FrameType = 'o' // bytes of the program's standard output
	FrameStderr FrameType = 'e' // bytes of the program's standard error
	FrameFile   FrameType = 'f' // one byte, the index into Spec.Outs, then a piece of its tar stream
	FrameAlive  FrameType = 'a' // nothing but that the machine runs, each AliveInterval
	FrameExit   FrameType = 'x' // the last one: JSON of Exit
	FrameSignal FrameType = 's' // one byte: send the program this signal
)

// AliveInterval is the time between two FrameAlive.
const AliveInterval = 5 * time.Second

// MaxPayload bounds a frame's payload in bytes.
const MaxPayload = 64 << 10

// PortName is the name of the virtio-serial port that carries the frames.
const PortName = "vmrun"

// SpecPath is where the guest finds its [Spec], in JSON.
const SpecPath = "/vm/spec.json"

// Spec tells the guest what to do.
type Spec struct {
	// Args is the program, by absolute path, and its arguments.
	Args []string
	// Env is the program's whole environment.
	Env []string
	// Dir is the program's working directory, made when it is absent.
	Dir string
	// Dirs are more directories to make.
	Dirs []string
	// Modules are module files to load, in this order.
	Modules []string
	// Merge sends standard error through standard output, in order.
	Merge bool
	// Outs are the files and directories to hand out at the end.
	Outs []string
}

// Hello is the guest's first message.
type Hello struct {
	// Release is the kernel's, as uname -r prints it.
	Release string
}

// Exit is the guest's last message.
type Exit struct {
	// Code is the program's exit status; 128 + the signal that ended it.
	Code int
	// Signal names the signal that ended the program, if one did.
	Signal string
	// Err says why the program could not be run at all.
	Err string
}

// Conn writes and reads frames. Writes may come from several goroutines,
// reads from one.
type Conn struct {
	rw  io.ReadWriter
	mu  sync.Mutex
	in  []byte
	out []byte
}

// NewConn returns a Conn over rw, which stays the caller's.
func NewConn(rw io.ReadWriter) *Conn { return &Conn{rw: rw} }

const headerSize = 5

// Write sends one frame in one write. The payload is at most [MaxPayload].
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

// WriteJSON sends v as the payload of one frame.
func (c *Conn) WriteJSON(t FrameType, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode frame %q: %w", t, err)
	}
	return c.Write(t, b)
}

// Read returns the next frame. The payload is valid until the next Read.
// io.EOF means that the other side ended between frames.
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

// Stream is an io.Writer whose bytes become frames of one type, each payload
// beginning with Prefix.
type Stream struct {
	Conn   *Conn
	Type   FrameType
	Prefix []byte
}

// Write sends p in as many frames as it takes.
func (s Stream) Write(p []byte) (int, error) {
	const piece = MaxPayload / 2 // a virtio port takes 32 KiB at once
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
