package peers

import (
	"bufio"
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

// memberlist accepts several messages that could crash a node or exhaust its memory. syncd never sends
// them. A sender needs the gossip key if gossip is encrypted, and nothing otherwise. The filter
// rejects these messages:
//   - version 0 of the encryption, whose padding memberlist trusts
//   - an encrypted message of 0 bytes
//   - compressed messages, of up to 40 MiB each
//   - application messages, and messages of unknown types
//   - states of a million nodes, for which memberlist allocates memory at once
//   - values of types that syncd never sends: see valueReader
const (
	encryptionVersion = 1
	encryptionNonce   = 12

	messageDead       = 5 // the last of the messages about a node: ping, indirect ping, acknowledgement, suspect, alive, dead
	messageCompound   = 7
	messageCompressed = 9
	messageEncrypted  = 10 // in a stream, a length of 4 bytes and the ciphertext follow
	messageNack       = 11
	messageChecksum   = 12 // a checksum of 4 bytes and a message follow

	streamHead = 5
)

// RejectEncoding counts gossip messages with an encoding that syncd never sends.
const RejectEncoding = "encoding"

var (
	errEncoding        = errors.New("gossip message has an unsupported encoding")
	errAnnouncedLength = fmt.Errorf("announced length: %w", errTooLarge)
)

// acceptsPacket reports whether memberlist may decode a packet.
func (t *transport) acceptsPacket(p *memberlist.Packet) bool {
	if !t.checkLabel(p) {
		return false
	}
	message, ok := p.Buf, true
	if t.keyring != nil {
		if message, ok = decryptGossip(t.keyring.GetKeys(), p.Buf, []byte(t.label)); message == nil && ok {
			return true // encrypted with another key; memberlist reports it
		}
	}
	switch {
	case ok && decodable(message, 0):
		return true
	case t.keyring == nil && message[0] == encryptionVersion:
		t.encrypted(p.From) // the version of the encryption is also the type of an indirect ping
	default:
		t.limiter.rejectEncoding(p.From)
	}
	return false
}

// decryptGossip decrypts a message with the key that fits. The result is nil if no key fits, and empty
// if the plaintext is empty. ok is false if memberlist must not decrypt the message.
func decryptGossip(keys [][]byte, message, authenticated []byte) (decrypted []byte, ok bool) {
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
			continue // memberlist has checked the key size
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

// maxCompound is the maximum nesting depth of the messages in a packet. syncd nests them once.
const maxCompound = 3

// decodable reports whether memberlist may decode a packet: whether its messages are of known types, neither compressed nor nested
// deeper than maxCompound, and whether each is a map that valueReader accepts.
func decodable(message []byte, depth int) bool {
	if len(message) >= streamHead && message[0] == messageChecksum {
		message = message[streamHead:]
	}
	switch {
	case len(message) == 0:
		return true // memberlist drops it
	case message[0] == messageCompound:
		return depth <= maxCompound && decodableParts(message[1:], depth+1)
	case message[0] <= messageDead || message[0] == messageNack:
		values := valueReader{from: bytes.NewReader(message[1:])}
		return values.skipMap() == nil
	}
	return false
}

// decodableParts is decodable for the messages of a compound message. memberlist drops the incomplete ones.
func decodableParts(message []byte, depth int) bool {
	if len(message) == 0 {
		return true
	}
	count := int(message[0])
	lengths, parts := message[1:], message[1:]
	if len(lengths) < 2*count {
		return true
	}
	parts = parts[2*count:]
	for i := range count {
		n := int(binary.BigEndian.Uint16(lengths[2*i:]))
		if n > len(parts) {
			return true
		}
		if !decodable(parts[:n], depth) {
			return false
		}
		parts = parts[n:]
	}
	return true
}

// Types of messages that syncd sends first in a stream, besides an encrypted message.
const (
	messagePing     = 0
	messageAck      = 2
	messagePushPull = 6
	messageError    = 13
)

// maxAnnounced bounds the number of nodes that a state exchange announces. memberlist allocates memory
// for all of them before it reads the first.
const maxAnnounced = 4 * maxNames

// maxPushPullHead bounds the head of a state exchange in bytes. syncd needs 40 bytes.
const maxPushPullHead = 256

// pushPullHead is the head of a state exchange as memberlist defines it.
type pushPullHead struct {
	Nodes        int
	UserStateLen int
	Join         bool
}

// streamFilter forwards the first message of a stream after it has verified that memberlist may decode
// it. One goroutine reads from it.
type streamFilter struct {
	from    io.Reader           // limited in bytes
	keyring *memberlist.Keyring // nil: gossip is not encrypted
	label   string              // the name of the cluster
	opened  bool                // this node has opened the stream: the answer has no label
	reject  func(error)         // called at most once, with the reason
	checked bool
	err     error  // why the message is rejected
	first   []byte // read but not yet forwarded
}

// Read implements io.Reader. Its errors wrap errEncoding, errAnnouncedLength or errors of the
// connection.
func (g *streamFilter) Read(p []byte) (int, error) {
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

// check reads and checks the first message.
func (g *streamFilter) check() error {
	g.first = make([]byte, 1, streamHead)
	if g.opened {
		if _, err := io.ReadFull(g.from, g.first); err != nil {
			return err
		}
	} else if err := g.checkLabel(); err != nil {
		return err
	}
	if g.keyring == nil {
		var read bytes.Buffer
		err := checkStream(g.first[0], bufio.NewReader(io.TeeReader(g.from, &read)))
		g.first = append(g.first, read.Bytes()...)
		return err
	}
	if g.first[0] != messageEncrypted {
		return nil // memberlist rejects it
	}
	head := g.first[:streamHead]
	if _, err := io.ReadFull(g.from, head[1:]); err != nil {
		return err
	}
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if size > gossipBytes {
		return errAnnouncedLength
	}
	text, err := io.ReadAll(io.LimitReader(g.from, size))
	if err != nil {
		return err
	}
	g.first = append(head, text...)
	message, ok := decryptGossip(g.keyring.GetKeys(), text, append(g.first[:streamHead:streamHead], g.label...))
	switch {
	case !ok || (message != nil && len(message) == 0):
		return errEncoding
	case message == nil:
		return nil // encrypted with another key; memberlist reports it
	}
	return checkStream(message[0], bytes.NewReader(message[1:]))
}

// checkLabel removes the label of a stream and compares it. It sets the first byte after it.
func (g *streamFilter) checkLabel() error {
	label, next, err := readLabel(g.from)
	switch {
	case err != nil:
		return err
	case label != g.label:
		return clusterError(label)
	}
	g.first[0] = next
	return nil
}

// checkStream checks the type of a stream's message and its values. It reads no further than to the end of the message, except into
// the buffer of rest.
func checkStream(kind byte, rest io.Reader) error {
	values := valueReader{from: rest}
	switch kind {
	case messageEncrypted:
		return nil // without a key, memberlist reports it
	case messagePing, messageAck, messageError:
		return values.skipMap()
	case messagePushPull:
		nodes, err := announcedNodes(rest)
		for range nodes {
			if err == nil {
				err = values.skipMap()
			}
		}
		return err
	}
	return errEncoding
}

// announcedNodes reads the head of a state exchange and returns the number of nodes that follow.
func announcedNodes(rest io.Reader) (nodes int, err error) {
	var head bytes.Buffer
	values := valueReader{from: io.TeeReader(io.LimitReader(rest, maxPushPullHead), &head)}
	if err := values.skipMap(); err != nil {
		return 0, fmt.Errorf("read the head of a state exchange: %w", err)
	}
	var h pushPullHead
	if err := codec.NewDecoder(&head, &codec.MsgpackHandle{}).Decode(&h); err != nil {
		return 0, fmt.Errorf("decode the head of a state exchange: %w", err)
	}
	if h.Nodes < 0 || h.Nodes > maxAnnounced || h.UserStateLen != 0 {
		return 0, errEncoding
	}
	return h.Nodes, nil
}

// filteredConn is a connection whose first message passes a streamFilter.
type filteredConn struct {
	net.Conn
	filter streamFilter
}

// filterConn filters the bytes that from reads of a connection. opened reports that this node has opened it. The limiter counts a
// rejected message.
func (t *transport) filterConn(conn net.Conn, from io.Reader, opened bool) *filteredConn {
	return &filteredConn{conn, streamFilter{from: from, keyring: t.keyring, label: t.label, opened: opened, reject: func(err error) {
		limited, _ := conn.(*limitedConn)
		var other clusterError
		switch {
		case errors.As(err, &other):
			t.limiter.rejectCluster(conn.RemoteAddr(), string(other), t.label)
		case errors.Is(err, errEncoding):
			t.limiter.rejectEncoding(conn.RemoteAddr())
		case errors.Is(err, errAnnouncedLength) && limited != nil:
			t.limiter.reject(limited, RejectBytes)
		}
	}}}
}

// Read implements net.Conn. memberlist reads from one goroutine.
func (c *filteredConn) Read(p []byte) (int, error) { return c.filter.Read(p) }

// rejectEncoding counts and logs a message with an encoding that syncd never sends.
func (l *Limiter) rejectEncoding(from net.Addr) {
	l.mu.Lock()
	l.rejected[RejectEncoding]++
	l.mu.Unlock()
	if l.logLimit.allow(RejectEncoding) {
		l.log.Warn("gossip message rejected, invalid encoding", "listener", l.limits.Name,
			"remote", from.String(), "problem", "gossip-invalid", "hint", "the sender is not syncd; if gossip is encrypted, it has the key: change the key")
	}
}
