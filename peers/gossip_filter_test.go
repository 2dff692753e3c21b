package peers

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
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
	ping := []byte{messagePing, 0x80}
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
		{[]byte{messageEncrypted, 0x80}, true},
		{[]byte{8, 0x80}, true}, // of an application
		{[]byte{244, 1, 'x', messagePing, 0x80}, true},
		{compound(ping, bomb), true},
		{compound(ping, compound(bomb)), true},
		{deep, true},
		{append([]byte{messageChecksum, 0, 0, 0, 0}, bomb...), true},
		{ping, false},
		{compound(ping, ping), false},
		{nil, false},
		{[]byte{messageCompound, 200}, false},
	} {
		if got := decodable(c.message, 0); got == c.found {
			t.Errorf("decodable(%v): got %v, want %v", c.message, got, !c.found)
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

// TestValuesOfOtherTypesAreRejected verifies that values whose announced length memberlist would allocate at once, and nested ones,
// are rejected without memory, in packets and in each part of a stream.
func TestValuesOfOtherTypesAreRejected(t *testing.T) {
	large := []byte{0x81, 0xa1, 'x', 0xc9, 0x7f, 0xff, 0xff, 0xff, 1} // an extension of 2 GiB
	nested := append([]byte{0x81, 0xa1, 'x'}, bytes.Repeat([]byte{0x91}, 1<<16)...)
	state := func(value []byte) []byte { return append(pushPull(1, 0), value...) }
	for name, value := range map[string][]byte{
		"extension": large, "nested": nested, "array": {0x91, 1}, "float": {0x81, 0xa1, 'x', 0xca, 0, 0, 0, 0}, "number": {7}, "none": {0xc0},
	} {
		for kind := range byte(messageNack + 1) {
			if decodable(append([]byte{kind}, value...), 0) && kind != messageCompound {
				t.Errorf("%s in a packet of type %d: got it accepted, want it refused", name, kind)
			}
		}
		for part, stream := range map[string][]byte{
			"ping": append([]byte{messagePing}, value...), "error": append([]byte{messageError}, value...),
			"head": append([]byte{messagePushPull}, value...), "node": state(value),
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := checkStream(stream[0], bufio.NewReader(bytes.NewReader(stream[1:])))
			runtime.ReadMemStats(&after)
			if allocated := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, errEncoding) || allocated > 1<<20 {
				t.Errorf("%s in the %s of a stream: got error %v and %d bytes allocated, want errEncoding and at most 1 MiB", name, part, err, allocated)
			}
		}
	}
	whole := append(pushPull(1, 0), 0x82, 0xa4, 'N', 'a', 'm', 'e', 0xd9, 1, 'b', 0xa4, 'P', 'o', 'r', 't', 0xcd, 31, 10)
	if err := checkStream(whole[0], bytes.NewReader(whole[1:])); err != nil {
		t.Errorf("state of a node: got error %v, want none", err)
	}
	if err := checkStream(whole[0], bytes.NewReader(whole[1:len(whole)-1])); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("incomplete state of a node: got error %v, want that of the connection", err)
	}
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
