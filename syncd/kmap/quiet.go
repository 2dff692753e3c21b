package kmap

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"unsafe"

	"mapsync/bpf"

	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// quiet runs a program with bottom halves off, so that no packet interrupts it: a
// hook that runs for our write is not run for a packet's that interrupts. From 6.11
// on a test run is like that. Before 6.6 an iterator over UDP sockets is, which
// shows each socket under the lock of its bucket in the hash table of ports; the one
// to be shown is ours, on loopback, and nobody sends to it.
type quiet struct {
	socket *net.UDPConn
	iter   io.ReadCloser
	fd     int
}

// quietIterators tells whether this kernel's UDP iterator is what the type says, and
// its test run is not.
func quietIterators() bool {
	code, err := features.LinuxVersionCode()
	return err == nil && code >= 5<<16|9<<8 && code < 6<<16|6<<8
}

var errLoudIterators = errors.New("test runs or iterators of this kernel are no better")

// quiet tells whether no packet can interrupt a write of ours.
func (k *Map) quiet() bool {
	code, err := features.LinuxVersionCode()
	return k.writer != nil && (k.writer.quiet != nil || err == nil && code >= 6<<16|11<<8)
}

func (k *Map) openQuietWriter(o *Options) (*shared, error) {
	if !quietIterators() {
		return nil, errLoudIterators
	}
	return k.openShared(o.OwnWriter, k.burst(o), bpf.AccessProgMapsyncWriteQuiet,
		bpf.AccessMapWriteEntries, bpf.AccessMapWriteCursor, bpf.AccessMapOwnWriter)
}

// openQuiet makes the program of s an iterator, and runs it once over nothing.
func openQuiet(s *shared) (_ *quiet, err error) {
	q := new(quiet)
	defer func() {
		if err != nil {
			err = errors.Join(err, q.close())
		}
	}()
	if q.socket, err = listen(0); err != nil {
		return nil, err
	}
	l, err := link.AttachIter(link.IterOptions{Program: s.prog})
	if err != nil {
		return nil, fmt.Errorf("attach iterator: %w", err)
	}
	defer l.Close()
	if q.iter, err = l.Open(); err != nil {
		return nil, fmt.Errorf("open iterator: %w", err)
	}
	q.fd = int(q.iter.(interface{ Fd() uintptr }).Fd())
	if err := q.runs(1); err != nil {
		return nil, err
	}
	return q, q.moveForward(s)
}

func listen(port int) (*net.UDPConn, error) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return nil, fmt.Errorf("open a socket to iterate over: %w", err)
	}
	return c, nil
}

// moveForward gives the socket a port whose bucket is among the first: each read
// looks for it from the first on, and there may be 65536. The bucket is the port
// plus a number of the network namespace.
func (q *quiet) moveForward(s *shared) error {
	cursor := (*bpf.AccessCursor)(unsafe.Pointer(&s.cursor[0]))
	_, text, err := net.SplitHostPort(q.socket.LocalAddr().String())
	if err != nil {
		return fmt.Errorf("read socket's port: %w", err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("read socket's port: %w", err)
	}
	first := port - int(atomic.LoadUint32(&cursor.Bucket))
	for i := range 4096 {
		better := (first + i) & 0xffff
		if better < 1024 {
			continue
		}
		if c, err := listen(better); err == nil {
			err = q.socket.Close()
			q.socket = c
			return err
		}
	}
	return nil // slower, that is all
}

// output is where the iterator would put what it has to say.
var output [8]byte

// runs has the program run n times.
func (q *quiet) runs(n uint32) error {
	for range n {
		_, err := unix.Read(q.fd, output[:])
		if err == nil {
			return errors.New("run program: no socket to iterate over")
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}

func (q *quiet) close() error {
	if q == nil {
		return nil
	}
	var errs []error
	if q.iter != nil {
		errs = append(errs, q.iter.Close())
	}
	if q.socket != nil {
		errs = append(errs, q.socket.Close())
	}
	return errors.Join(errs...)
}
