package peers

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"
)

// What the library accepts, of a holder of the gossip key or, without one, of anybody, would end
// or bloat every node, and no node sends it: version 0 of the encryption, whose padding the library
// trusts; an encrypted message of no bytes; compressed messages, of up to 40 MiB each; messages of
// an application, and states of a million nodes, for which it makes room at once.
const (
	encryptionVersion = 1
	encryptionNonce   = 12

	messageCompound   = 7
	messageCompressed = 9
	messageEncrypted  = 10 // of a stream: a length of 4 bytes and the ciphertext follow
	messageChecksum   = 12 // a checksum of 4 bytes and a message follow

	streamHead = 5
)

// RejectEncoding counts gossip messages of a form that no node sends.
const RejectEncoding = "encoding"

var (
	errEncoding  = errors.New("no node sends gossip messages of this form")
	errAnnounced = fmt.Errorf("announced: %w", errTooLarge)
)

// accepts reports whether the library may have a packet.
func (t *transport) accepts(p *memberlist.Packet) bool {
	message, ok := p.Buf, true
	if t.ring != nil {
		if message, ok = plain(t.ring.GetKeys(), p.Buf, nil); message == nil && ok {
			return true // of another key, which the library reports
		}
	}
	if ok && !hasCompressed(message, 0) {
		return true
	}
	t.limiter.rejectEncoding(p.From)
	return false
}

// plain decrypts a message with the key that fits. The result is nil if none does, and empty if
// nothing was encrypted. ok is false if the library must not decrypt the message.
func plain(keys [][]byte, message, authenticated []byte) (decrypted []byte, ok bool) {
	if len(message) < 1+encryptionNonce {
		return nil, true
	}
	if message[0] != encryptionVersion {
		return nil, message[0] != 0
	}
	nonce, text := message[1:1+encryptionNonce], message[1+encryptionNonce:]
	for _, key := range keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			continue // the library has checked its size
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			continue
		}
		if out, err := gcm.Open(make([]byte, 0, len(text)), nonce, text, authenticated); err == nil {
			return out, true
		}
	}
	return nil, true
}

// maxCompound is how deep the messages of a packet may be nested: nodes nest them once.
const maxCompound = 3

// hasCompressed reports whether a packet holds a compressed message, or messages nested too
// deep.
func hasCompressed(message []byte, depth int) bool {
	if len(message) >= streamHead && message[0] == messageChecksum {
		message = message[streamHead:]
	}
	switch {
	case len(message) == 0:
		return false
	case message[0] == messageCompressed || depth > maxCompound:
		return true
	case message[0] != messageCompound || len(message) < 2:
		return false
	}
	count := int(message[1])
	lengths, parts := message[2:], message[2:]
	if len(lengths) < 2*count {
		return false // the library drops it
	}
	parts = parts[2*count:]
	for i := range count {
		n := int(binary.BigEndian.Uint16(lengths[2*i:]))
		if n > len(parts) {
			return false
		}
		if hasCompressed(parts[:n], depth+1) {
			return true
		}
		parts = parts[n:]
	}
	return false
}

// Messages that nodes begin a stream with, besides an encrypted one.
const (
	messagePing     = 0
	messageAck      = 2
	messagePushPull = 6
	messageError    = 13
)

// maxAnnounced bounds the nodes that a state exchange announces: the library makes room for all of
// them before it has read one.
const maxAnnounced = 4 * maxNames

// maxPushPullHead bounds the head of a state exchange in bytes, of which nodes need 40.
const maxPushPullHead = 256

// pushPullHead is the head of a state exchange, as the library has it.
type pushPullHead struct {
	Nodes        int
	UserStateLen int
	Join         bool
}

// guard hands the first message of a stream on once it is known that the library may decode it.
// It reads from one goroutine.
type guard struct {
	from    io.Reader           // bounded
	ring    *memberlist.Keyring // nil: gossip is not encrypted
	reject  func(error)         // called once, with the reason
	checked bool
	err     error  // why the message is rejected
	first   []byte // read and not yet handed on
}

// Read implements io.Reader. Its errors wrap errEncoding, errAnnounced or those of the connection.
func (g *guard) Read(p []byte) (int, error) {
	if !g.checked {
		g.checked = true
		if g.err = g.check(); g.err != nil {
			g.reject(g.err)
		}
	}
	if g.err != nil {
		return 0, g.err
	}
	if len(g.first) > 0 {
		n := copy(p, g.first)
		g.first = g.first[n:]
		return n, nil
	}
	return g.from.Read(p)
}

// check reads the first message, of a state exchange that is not encrypted the head.
func (g *guard) check() error {
	g.first = make([]byte, 1, streamHead)
	if _, err := io.ReadFull(g.from, g.first); err != nil {
		return err
	}
	if g.ring == nil {
		var head bytes.Buffer
		err := checkStream(g.first[0], io.TeeReader(g.from, &head))
		g.first = append(g.first, head.Bytes()...)
		return err
	}
	if g.first[0] != messageEncrypted {
		return nil // the library rejects it
	}
	head := g.first[:streamHead]
	if _, err := io.ReadFull(g.from, head[1:]); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if size > gossipBytes {
		return errAnnounced
	}
	text, err := io.ReadAll(io.LimitReader(g.from, size))
	if err != nil {
		return err
	}
	g.first = append(head, text...)
	message, ok := plain(g.ring.GetKeys(), text, g.first[:streamHead])
	switch {
	case !ok || (message != nil && len(message) == 0):
		return errEncoding
	case message == nil:
		return nil // of another key, which the library reports
	}
	return checkStream(message[0], bytes.NewReader(message[1:]))
}

// checkStream checks a stream's message by its type, and what follows the type.
func checkStream(kind byte, rest io.Reader) error {
	switch kind {
	case messagePing, messageAck, messageError, messageEncrypted: // the library reports the last one: nobody has a key
		return nil
	case messagePushPull:
		var h pushPullHead
		if err := codec.NewDecoder(io.LimitReader(rest, maxPushPullHead), &codec.MsgpackHandle{}).Decode(&h); err != nil {
			return fmt.Errorf("read the head of a state exchange: %w", err)
		}
		if h.Nodes >= 0 && h.Nodes <= maxAnnounced && h.UserStateLen == 0 {
			return nil
		}
	}
	return errEncoding
}

// guardedConn is a connection whose first message is guarded.
type guardedConn struct {
	net.Conn
	guard guard
}

// newGuardedConn guards what from reads of a connection. The limiter counts a message that is
// rejected.
func newGuardedConn(conn net.Conn, from io.Reader, ring *memberlist.Keyring, limiter *Limiter) *guardedConn {
	return &guardedConn{conn, guard{from: from, ring: ring, reject: func(err error) {
		switch limited, _ := conn.(*limitedConn); {
		case errors.Is(err, errEncoding):
			limiter.rejectEncoding(conn.RemoteAddr())
		case errors.Is(err, errAnnounced) && limited != nil:
			limiter.reject(limited, RejectBytes)
		}
	}}}
}

// Read implements net.Conn. The library reads from one goroutine.
func (c *guardedConn) Read(p []byte) (int, error) { return c.guard.Read(p) }

// rejectEncoding counts and logs a message that no node sends.
func (l *Limiter) rejectEncoding(from net.Addr) {
	l.mu.Lock()
	l.rejected[RejectEncoding]++
	l.mu.Unlock()
	if l.gate.allow(RejectEncoding) {
		l.log.Warn("gossip message rejected, no node sends one of this form", "listener", l.limits.Name,
			"remote", from.String(), "hint", "the sender is not syncd; if gossip is encrypted, it has the key: change the key")
	}
}
