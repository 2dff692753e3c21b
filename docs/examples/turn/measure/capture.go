package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/internal/netns"
)

// capture verifies the checksums of all UDP packets that a namespace receives from the service's address.
type capture struct {
	checked, wrong atomic.Uint64

	closing atomic.Bool
	done    sync.WaitGroup
	fd      int
}

func startCapture(ns *netns.NS) (*capture, error) {
	c := &capture{fd: -1}
	err := ns.Do(func() (err error) {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		protocol := binary.NativeEndian.Uint16([]byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff})
		c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
		if err != nil {
			return err
		}
		const room = 16 << 20
		wait := unix.NsecToTimeval(int64(100 * time.Millisecond))
		return errors.Join(
			unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room),
			unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
			unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: device.Index}))
	})
	if err != nil {
		return nil, fmt.Errorf("capture packets of %s: %w", ns.Name(), err)
	}
	c.done.Go(c.read)
	return c, nil
}

func (c *capture) read() {
	b := make([]byte, 2048)
	for !c.closing.Load() {
		n, from, err := unix.Recvfrom(c.fd, b, 0)
		if err != nil {
			continue // nothing has arrived
		}
		if a, ok := from.(*unix.SockaddrLinklayer); ok && a.Pkttype != unix.PACKET_OUTGOING {
			c.verify(b[:n])
		}
	}
}

const (
	ethernetHeader = 14
	ipHeader       = 20
	udpHeader      = 8
)

// verify counts a frame whose sums are wrong: the sum over the header of IP, and that over UDP with the
// pseudo header. The checksum 0 of UDP counts as wrong, because no sender here omits it.
func (c *capture) verify(frame []byte) {
	if len(frame) < ethernetHeader+ipHeader+udpHeader {
		return
	}
	ip := frame[ethernetHeader:]
	source := service.Addr().As4()
	if ip[0] != 0x45 || ip[9] != unix.IPPROTO_UDP || [4]byte(ip[12:16]) != source {
		return
	}
	c.checked.Add(1)
	length := int(binary.BigEndian.Uint16(ip[2:]))
	if length > len(ip) || length < ipHeader+udpHeader {
		c.wrong.Add(1)
		return
	}
	udp := ip[ipHeader:length]
	pseudo := append(append([]byte{}, ip[12:20]...), 0, unix.IPPROTO_UDP)
	pseudo = append(pseudo, udp[4:6]...)
	if internetSum(ip[:ipHeader]) != 0xffff || internetSum(pseudo, udp) != 0xffff ||
		binary.BigEndian.Uint16(udp[6:]) == 0 || int(binary.BigEndian.Uint16(udp[4:])) != len(udp) {
		c.wrong.Add(1)
	}
}

// internetSum returns the ones' complement sum of 16-bit words. All parts but the last one have an even
// length.
func internetSum(parts ...[]byte) uint32 {
	var sum uint32
	for _, p := range parts {
		for i := 0; i+1 < len(p); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(p[i:]))
		}
		if len(p)%2 == 1 {
			sum += uint32(p[len(p)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return sum
}

func (c *capture) close() error {
	c.closing.Store(true)
	c.done.Wait()
	return unix.Close(c.fd)
}
