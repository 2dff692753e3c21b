package dataplane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Receiver is a UDP socket. Each packet runs a Program once in a soft interrupt. The program drops the
// packet.
type Receiver struct {
	conn *net.UDPConn
}

// Receive opens a UDP socket on loopback with p as its socket filter.
func (p *Program) Receive() (*Receiver, error) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("open data plane's socket: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		controlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_BPF, p.objects.MakeWrites.FD())
		})
		err = errors.Join(err, controlErr)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach data plane to its socket: %w", err), conn.Close())
	}
	return &Receiver{conn: conn}, nil
}

// Close closes the socket.
func (r *Receiver) Close() error { return r.conn.Close() }

// Flood sends packets from the CPU sender until stop is called. stop waits for the sender and returns
// the number of packets sent. [SteerLoopback] determines the CPU on which they run the program. Flood
// busy-waits for about pause between two packets. Without a pause, the receiving CPU polls for the
// packets in a separate thread, so they do not interrupt other code.
func (r *Receiver) Flood(sender int, pause time.Duration) (stop func() (uint64, error)) {
	var stopped atomic.Bool
	var sent uint64
	done := make(chan error, 1)
	more := func() bool {
		if pause > 0 { // a random pause avoids lockstep with the interrupted code
			until := time.Now().Add(pause/2 + rand.N(pause))
			for time.Now().Before(until) {
			}
		}
		return !stopped.Load()
	}
	go func() { done <- r.send(sender, more, &sent) }()
	return func() (uint64, error) {
		stopped.Store(true)
		err := <-done
		return sent, err
	}
}

// Send sends n packets from the CPU sender and waits until each of them has run the program p.
func (r *Receiver) Send(p *Program, sender, n int) error {
	var sent uint64
	for range n {
		before, one := p.Runs(), true
		err := r.send(sender, func() bool { defer func() { one = false }(); return one }, &sent)
		if err != nil {
			return err
		}
		for deadline := time.Now().Add(10 * time.Second); p.Runs() == before; {
			if time.Now().After(deadline) {
				return errors.New("send packet to data plane: it did not arrive within 10 s")
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	return nil
}

// send sends packets while more returns true.
func (r *Receiver) send(cpu int, more func() bool, sent *uint64) error {
	unpin, err := Pin(cpu)
	if err != nil {
		return err
	}
	defer unpin()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open sending socket: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // only written to
	to := &unix.SockaddrInet4{Port: r.conn.LocalAddr().(*net.UDPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	if err := unix.Connect(fd, to); err != nil {
		return fmt.Errorf("connect sending socket: %w", err)
	}
	payload := []byte{0}
	for more() {
		// The socket's queue may be full temporarily.
		switch _, err := unix.Write(fd, payload); {
		case err == nil:
			*sent++
		case !errors.Is(err, syscall.ENOBUFS) && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR):
			return fmt.Errorf("send packet: %w", err)
		}
	}
	return nil
}

// Pin locks the calling goroutine to a thread on one CPU until unpin is called.
func Pin(cpu int) (unpin func(), err error) {
	runtime.LockOSThread()
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("read CPU affinity: %w", err)
	}
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("pin thread to CPU %d: %w", cpu, err)
	}
	return func() {
		// If resetting the affinity fails, the thread ends with its goroutine.
		if unix.SchedSetaffinity(0, &before) == nil {
			runtime.UnlockOSThread()
		}
	}, nil
}

// rpsFile contains the mask of CPUs that process packets from loopback.
const rpsFile = "/sys/class/net/lo/queues/rx-0/rps_cpus"

// SteerLoopback makes one CPU below 32 process all packets on loopback, regardless of the sending CPU.
// The packets interrupt the code that runs on that CPU. It needs root and CONFIG_RPS, and applies to
// the whole network namespace until restore is called.
func SteerLoopback(cpu int) (restore func() error, err error) {
	before, err := os.ReadFile(rpsFile)
	if err != nil {
		return nil, fmt.Errorf("steer packets on loopback: %w", err)
	}
	mask := strconv.FormatUint(1<<uint(cpu), 16)
	if err := os.WriteFile(rpsFile, []byte(mask), 0); err != nil {
		return nil, fmt.Errorf("steer packets on loopback: %w", err)
	}
	return func() error {
		if err := os.WriteFile(rpsFile, []byte(strings.TrimSpace(string(before))), 0); err != nil {
			return fmt.Errorf("steer packets on loopback as before: %w", err)
		}
		return nil
	}, nil
}
