package lb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10

	ethLen, ipLen, tcpLen = 14, 20, 20
)

var (
	routerMAC   = [6]byte{2, 0, 0, 0, 0, 1}
	balancerMAC = [6]byte{2, 0, 0, 0, 0, 2}
)

// segment is a TCP segment in an Ethernet frame. Only parseSegment sets the MACs.
type segment struct {
	srcMAC, dstMAC [6]byte
	src, dst       netip.AddrPort
	flags          byte
	seq, ack       uint32
	payload        []byte
}

func (s segment) String() string {
	return fmt.Sprintf("%s > %s flags %#x seq %d ack %d, %d bytes", s.src, s.dst, s.flags, s.seq, s.ack, len(s.payload))
}

// bytes returns the frame from the router with complete checksums, as sent by a sender without
// offload.
func (s segment) bytes() []byte {
	frame := make([]byte, ethLen+ipLen+tcpLen, ethLen+ipLen+tcpLen+len(s.payload))
	frame = append(frame, s.payload...)
	copy(frame, balancerMAC[:])
	copy(frame[6:], routerMAC[:])
	frame[12] = 0x08
	ip, tcp := frame[ethLen:], frame[ethLen+ipLen:]
	ip[0], ip[8], ip[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	src, dst := s.src.Addr().As4(), s.dst.Addr().As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:ipLen], 0))
	binary.BigEndian.PutUint16(tcp, s.src.Port())
	binary.BigEndian.PutUint16(tcp[2:], s.dst.Port())
	binary.BigEndian.PutUint32(tcp[4:], s.seq)
	binary.BigEndian.PutUint32(tcp[8:], s.ack)
	tcp[12], tcp[13] = 5<<4, s.flags
	binary.BigEndian.PutUint16(tcp[14:], 0x2000)
	binary.BigEndian.PutUint16(tcp[16:], ^pseudoSum(ip))
	return frame
}

// parseSegment parses a frame. It returns an error for wrong checksums.
func parseSegment(frame []byte) (segment, error) {
	var s segment
	if len(frame) < ethLen+ipLen+tcpLen {
		return s, errors.New("frame too short")
	}
	ip, tcp := frame[ethLen:], frame[ethLen+ipLen:]
	if got := sum(ip[:ipLen], 0); got != 0xffff {
		return s, fmt.Errorf("IP checksum: got the sum %#x, want 0xffff", got)
	}
	if got := pseudoSum(ip); got != 0xffff {
		return s, fmt.Errorf("TCP checksum: got the sum %#x, want 0xffff", got)
	}
	copy(s.dstMAC[:], frame)
	copy(s.srcMAC[:], frame[6:])
	s.src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:])), binary.BigEndian.Uint16(tcp))
	s.dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:])), binary.BigEndian.Uint16(tcp[2:]))
	s.seq, s.ack = binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:])
	s.flags, s.payload = tcp[13], tcp[tcpLen:]
	return s, nil
}

// pseudoSum returns the checksum of a TCP segment with its pseudo header.
func pseudoSum(ip []byte) uint16 {
	return sum(ip[ipLen:], uint32(sum(ip[12:20], 0))+6+uint32(len(ip)-ipLen))
}

func sum(b []byte, start uint32) uint16 {
	s := start
	for i, c := range b {
		if i%2 == 0 {
			s += uint32(c) << 8
		} else {
			s += uint32(c)
		}
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
