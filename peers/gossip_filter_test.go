package peers

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"net"
	"slices"
	"testing"
	"time"

	"mapsync/internal/poll"
)

// sealVersion0 encrypts a message with version 0 of memberlist's encryption. Its padding is longer
// than the message.
func sealVersion0(t *testing.T, authenticated []byte) []byte {
	t.Helper()
	block, err := aes.NewCipher([]byte(keyOne))
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := make([]byte, gcm.NonceSize())
	return gcm.Seal(append([]byte{0}, nonce...), nonce, slices.Repeat([]byte{0xff}, 16), authenticated)
}

// seal encrypts a message with the encryption version of syncd.
func seal(t *testing.T, message, authenticated []byte) []byte {
	t.Helper()
	block, err := aes.NewCipher([]byte(keyOne))
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := make([]byte, gcm.NonceSize())
	return gcm.Seal(append([]byte{encryptionVersion}, nonce...), nonce, message, authenticated)
}

// TestCompressedGossipIsRejected verifies that compressed messages are detected alone, after a
// checksum and inside a compound message.
func TestCompressedGossipIsRejected(t *testing.T) {
	t.Parallel()
	bomb := []byte{messageCompressed, 1, 2, 3}
	compound := func(parts ...[]byte) []byte {
		b := []byte{messageCompound, byte(len(parts))}
		for _, p := range parts {
			b = binary.BigEndian.AppendUint16(b, uint16(len(p)))
		}
		return append(b, slices.Concat(parts...)...)
	}
	ping := []byte{0, 1}
	deep := ping
	for range maxCompound + 2 {
		deep = compound(deep)
	}
	a := start(t, "a", keys(keyOne))
	packet, err := net.Dial("udp", a.GossipAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = packet.Close() }()
	rejected := uint64(0)
	for _, c := range []struct {
		message []byte
		found   bool
	}{
		{bomb, true},
		{compound(ping, bomb), true},
		{compound(ping, compound(bomb)), true},
		{deep, true},
		{append([]byte{messageChecksum, 0, 0, 0, 0}, bomb...), true},
		{ping, false},
		{compound(ping, ping), false},
		{nil, false},
		{[]byte{messageCompound, 200}, false},
	} {
		if got := hasCompressed(c.message, 0); got != c.found {
			t.Errorf("hasCompressed(%v): got %v, want %v", c.message, got, c.found)
		}
		if _, err := packet.Write(seal(t, c.message, nil)); err != nil {
			t.Fatal(err)
		}
		if c.found {
			rejected++
		}
	}
	stream, err := net.Dial("tcp", a.GossipAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	head := binary.BigEndian.AppendUint32([]byte{messageEncrypted}, uint32(1+encryptionNonce+16+len(bomb)))
	if _, err := stream.Write(append(head[:streamHead:streamHead], seal(t, bomb, head)...)); err != nil {
		t.Fatal(err)
	}
	poll.Within(t, 10*time.Second, "all messages are rejected", func() bool { return a.Stats().Rejected[RejectEncoding] == rejected+1 })
}

// TestInvalidGossipPaddingIsRejected verifies that a sender with the gossip key cannot crash a node
// with the padding of encryption version 0.
func TestInvalidGossipPaddingIsRejected(t *testing.T) {
	t.Parallel()
	a := start(t, "a", keys(keyOne))
	packet, err := net.Dial("udp", a.GossipAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = packet.Close() }()
	stream, err := net.Dial("tcp", a.GossipAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	if _, err := packet.Write(sealVersion0(t, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Write(sealStreamVersion0(t)); err != nil {
		t.Fatal(err)
	}
	poll.Within(t, 10*time.Second, "both messages are rejected", func() bool { return a.Stats().Rejected[RejectEncoding] == 2 })
	b := start(t, "b", keys(keyOne), joining(a))
	poll.Within(t, 10*time.Second, "b joins", func() bool { return a.sees(b) && b.sees(a) })
}
