package main

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// A payload names its channel, its direction and its sequence number, and ends with a checksum of all
// that. Its length depends on these numbers, so that channels have data with and without padding.
type payload struct {
	channel uint32
	answer  bool // from the peer
	number  uint32
}

const (
	payloadHeader = 12
	payloadSum    = 4
	payloadMax    = 300
)

func (p payload) bytes() []byte {
	n := payloadHeader + payloadSum + int((p.channel*7+p.number*13)%(payloadMax-payloadHeader-payloadSum))
	b := make([]byte, n)
	binary.BigEndian.PutUint32(b, p.channel)
	if p.answer {
		binary.BigEndian.PutUint32(b[4:], 1)
	}
	binary.BigEndian.PutUint32(b[8:], p.number)
	for i := payloadHeader; i < n-payloadSum; i++ {
		b[i] = byte(p.channel + p.number + uint32(i))
	}
	binary.BigEndian.PutUint32(b[n-payloadSum:], crc32.ChecksumIEEE(b[:n-payloadSum]))
	return b
}

func readPayload(b []byte) (payload, error) {
	if len(b) < payloadHeader+payloadSum {
		return payload{}, errors.New("the payload is too short")
	}
	p := payload{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]) == 1, binary.BigEndian.Uint32(b[8:])}
	if string(p.bytes()) != string(b) {
		return payload{}, errors.New("the payload differs from the one that was sent")
	}
	return p, nil
}
