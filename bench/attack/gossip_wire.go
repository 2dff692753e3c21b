package main

import (
	"bytes"
	"compress/lzw"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"net"
)

// Types of memberlist's messages.
const (
	suspectMessage   byte = 3
	aliveMessage     byte = 4
	deadMessage      byte = 5
	compressMessage  byte = 9
	encryptedMessage byte = 10
)

// suspectOrDead returns memberlist's message that a node is suspected or dead, with from as its
// sender.
func suspectOrDead(kind byte, incarnation uint32, node, from string) []byte {
	b := append([]byte{kind}, 0x80|3)
	b = packUint(packString(b, "Incarnation"), incarnation)
	b = packString(packString(b, "Node"), node)
	return packString(packString(b, "From"), from)
}

// alive returns memberlist's message that a node is alive at an address. The address field stays
// empty if address is not an IPv4 address.
func alive(node string, incarnation uint32, address string, meta []byte) []byte {
	b := append([]byte{aliveMessage}, 0x80|6)
	b = packUint(packString(b, "Incarnation"), incarnation)
	b = packString(packString(b, "Node"), node)
	b = packString(packString(b, "Addr"), string(net.ParseIP(address).To4()))
	b = packUint(packString(b, "Port"), 7946)
	b = packString(packString(b, "Meta"), string(meta))
	return packString(packString(b, "Vsn"), string([]byte{1, 5, 2, 0, 0, 0}))
}

// compressed returns memberlist's message that wraps another message in compressed form.
func compressed(message []byte) []byte {
	var packed bytes.Buffer
	w := lzw.NewWriter(&packed, lzw.LSB, 8)
	_, _ = w.Write(message) // writing to memory never fails
	_ = w.Close()
	b := append([]byte{compressMessage}, 0x80|2)
	b = append(packString(b, "Algo"), 0)
	b = packString(b, "Buf")
	b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(packed.Len()))
	return append(b, packed.Bytes()...)
}

// packString appends a string, or bytes, in MessagePack.
func packString(b []byte, s string) []byte {
	if len(s) < 32 {
		return append(append(b, 0xa0|byte(len(s))), s...)
	}
	return append(binary.BigEndian.AppendUint16(append(b, 0xda), uint16(len(s))), s...)
}

func packUint(b []byte, v uint32) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0xce), v)
}

// seal encrypts a packet with the cluster's gossip key, as memberlist does.
func seal(message, authenticated []byte) []byte { return sealAs(1, message, authenticated) }

// sealAs encrypts like seal, in one of memberlist's two encryption versions. In version 0 the
// caller adds the padding.
func sealAs(version byte, message, authenticated []byte) []byte {
	block, err := aes.NewCipher(gossipKey)
	if err != nil {
		panic(err) // the key is a constant of the right size
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	nonce := make([]byte, gcm.NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return gcm.Seal(append([]byte{version}, nonce...), nonce, message, authenticated)
}

// streamHead returns the header of an encrypted message of n bytes on a TCP connection.
func streamHead(n int) []byte {
	return binary.BigEndian.AppendUint32([]byte{encryptedMessage}, uint32(n))
}

// sealStream encrypts a message for a TCP connection.
func sealStream(message []byte) []byte {
	head := streamHead(1 + 12 + 16 + len(message))
	return append(head[:5:5], seal(message, head)...)
}
