package peers

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"io"
	"net"

	"github.com/hashicorp/memberlist"
)

// Two things that the library accepts of a holder of the gossip key would end or bloat every
// node, and no node sends them: version 0 of the encryption, whose padding the library
// trusts, and compressed messages, of up to 40 MiB each.
const (
	encryptionVersion = 1
	encryptionNonce   = 12

	messageCompound   = 7
	messageCompressed = 9
	messageEncrypted  = 10 // of a stream: a length of 4 bytes and the ciphertext follow
	messageChecksum   = 12 // a checksum of 4 bytes and a message follow

	streamHead = 5
)

// RejectEncoding counts gossip messages with an encryption or a compression that no node uses.
const RejectEncoding = "encoding"

var errEncoding = errors.New("encryption or compression is not in use")

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

// plain decrypts a message by the key that fits, nil if none does. It reports false for one
// that the library must not decrypt.
func plain(keys [][]byte, message, authenticated []byte) ([]byte, bool) {
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
		if out, err := gcm.Open(nil, nonce, text, authenticated); err == nil {
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

// guardedConn hands the first message on a connection on once it is known that the library
// may decode it. The listener's limits bound its size.
type guardedConn struct {
	*limitedConn
	ring    *memberlist.Keyring // nil: gossip is not encrypted
	checked bool
	first   []byte // read and not yet handed on
}

// Read implements net.Conn. The library reads from one goroutine.
func (c *guardedConn) Read(p []byte) (int, error) {
	if !c.checked {
		c.checked = true
		if err := c.check(); err != nil {
			return 0, err
		}
	}
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.limitedConn.Read(p)
}

// check reads the first message, of one that is not encrypted the first byte.
func (c *guardedConn) check() error {
	c.first = make([]byte, 1, streamHead)
	if _, err := io.ReadFull(c.limitedConn, c.first); err != nil {
		return err
	}
	switch {
	case c.first[0] == messageCompressed:
		return c.reject()
	case c.first[0] != messageEncrypted || c.ring == nil:
		return nil
	}
	head := c.first[:streamHead]
	if _, err := io.ReadFull(c.limitedConn, head[1:]); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if size > gossipBytes {
		c.l.reject(c.limitedConn, RejectBytes)
		return errTooLarge
	}
	text, err := io.ReadAll(io.LimitReader(c.limitedConn, size))
	if err != nil {
		return err
	}
	c.first = append(head, text...)
	message, ok := plain(c.ring.GetKeys(), text, c.first[:streamHead])
	if !ok || len(message) > 0 && message[0] == messageCompressed {
		return c.reject()
	}
	return nil
}

func (c *guardedConn) reject() error {
	c.first = nil
	c.l.rejectEncoding(c.RemoteAddr())
	return errEncoding
}

// rejectEncoding counts and logs a message that no node sends.
func (l *Limiter) rejectEncoding(from net.Addr) {
	l.mu.Lock()
	l.rejected[RejectEncoding]++
	l.mu.Unlock()
	if l.gate.allow(RejectEncoding) {
		l.log.Warn("gossip message rejected, no node encrypts or compresses like this", "listener", l.limits.Name,
			"remote", from.String(), "hint", "the sender is not syncd; if gossip is encrypted, it has the key: change the key")
	}
}
