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

// softirqSafeRunner runs a program with bottom halves off, so that no packet interrupts it. While a
// hook runs for syncd's write, the kernel does not run it for the write of an interrupting packet.
// From 6.11 on, a test run has this property. Before 6.6 an iterator over UDP sockets has it: it
// shows each socket under the lock of its bucket in the hash table of ports. The socket to show is
// syncd's own, on loopback, and receives no packets.
type softirqSafeRunner struct {
	socket *net.UDPConn
	iter   io.ReadCloser
	fd     int
}

// useSoftirqSafeIterator returns true if this kernel's UDP iterator runs with bottom halves off,
// and its test run does not.
func useSoftirqSafeIterator() bool {
	code, err := features.LinuxVersionCode()
	return err == nil && code >= 5<<16|9<<8 && code < 6<<16|6<<8
}

var errNoSoftirqSafeIterator = errors.New("the soft-interrupt safe iterator is not used on this kernel")

// softirqSafe returns true if packets cannot interrupt syncd's writes to this map.
func (k *Map) softirqSafe() bool {
	code, err := features.LinuxVersionCode()
	return k.writer != nil && (k.writer.softirqSafe != nil || err == nil && code >= 6<<16|11<<8)
}

func (k *Map) openSoftirqSafeWriter(o *Options) (*sharedProgram, error) {
	if !useSoftirqSafeIterator() {
		return nil, errNoSoftirqSafeIterator
	}
	return k.openWriteProgram(o, bpf.AccessProgMapsyncWriteSoftirqSafe)
}

// openSoftirqSafeRunner attaches the program of s as an iterator, and runs it once without entries.
func openSoftirqSafeRunner(s *sharedProgram) (_ *softirqSafeRunner, err error) {
	q := new(softirqSafeRunner)
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
	return q, q.moveToEarlyBucket(s)
}

func listen(port int) (*net.UDPConn, error) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return nil, fmt.Errorf("open a socket to iterate over: %w", err)
	}
	return c, nil
}

// moveToEarlyBucket moves the socket to a port in one of the first buckets. Each read searches for
// the socket from the first bucket on, and there may be 65536 buckets. The bucket number is the
// port plus a number of the network namespace.
func (q *softirqSafeRunner) moveToEarlyBucket(s *sharedProgram) error {
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
	return nil // without an early bucket, reads are only slower
}

// output is the buffer for the iterator's output, which is empty.
var output [8]byte

// runs runs the program n times.
func (q *softirqSafeRunner) runs(n uint32) error {
	for range n {
		start := startCall()
		_, err := unix.Read(q.fd, output[:])
		CallProgram.ended(start)
		if err == nil {
			return errors.New("run program: no socket to iterate over")
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}

func (q *softirqSafeRunner) close() error {
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
