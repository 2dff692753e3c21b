// Package netns builds small networks from unnamed network namespaces. It creates no files under
// /run/netns. The kernel removes the namespaces of a crashed program with its process.
//
// It needs CAP_NET_ADMIN and CAP_SYS_ADMIN (the namespaces belong to the caller's user namespace) and,
// for [Veth], the veth driver. It does not depend on testing.T, so both programs and tests can use it:
//
//	a, err := netns.New("client")
//	b, err := netns.New("server")
//	defer a.Close()
//	defer b.Close()
//	err = netns.Veth(a, "eth0", b, "eth0")
//	err = errors.Join(a.Addr("eth0", "10.0.0.1/24"), a.Up("eth0"))
//	err = errors.Join(b.Addr("eth0", "10.0.0.2/24"), b.Up("eth0"))
//	err = b.Do(func() error { ln, err = net.Listen("tcp", "10.0.0.2:80"); return err })
package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NS is one network namespace. A file descriptor keeps it alive until [NS.Close]. Its methods are safe
// for concurrent use.
type NS struct {
	name   string
	fd     vns.NsHandle
	handle *netlink.Handle
}

// New creates a network namespace with its loopback up. The name appears only in error messages. The
// caller owns the result and must close it.
func New(name string) (*NS, error) {
	fd, err := create()
	if err != nil {
		return nil, fmt.Errorf("create network namespace %s: %w", name, err)
	}
	handle, err := netlink.NewHandleAt(fd, unix.NETLINK_ROUTE) // other netlink families may need modules that are not loaded
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink in namespace %s: %w", name, err), fd.Close())
	}
	n := &NS{name: name, fd: fd, handle: handle}
	if err := n.Up("lo"); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// create creates the namespace on a locked thread and returns the thread to its former namespace. If
// that fails, the thread stays locked. The Go runtime then ends it with its goroutine, so no other
// goroutine runs in the wrong namespace.
func create() (vns.NsHandle, error) {
	fd := vns.None()
	err := onThread(func() error {
		var err error
		fd, err = vns.New()
		return err
	})
	if err != nil && fd.IsOpen() {
		err = errors.Join(err, fd.Close())
	}
	return fd, err
}

// onThread runs f on a goroutine whose thread may change its network namespace. It then returns the
// thread to its former namespace. It does not recover a panic of f.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := vns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("get current namespace: %w", err)
			return
		}
		returned := false
		defer func() { // also runs when f calls runtime.Goexit, as t.FailNow does
			back := vns.Set(home)
			if back == nil {
				runtime.UnlockOSThread()
			}
			back = errors.Join(back, home.Close())
			if !returned {
				err = errors.New("function ended its goroutine")
			}
			done <- errors.Join(err, back)
		}()
		err = f()
		returned = true
	}()
	return <-done
}

// Name returns the name given to New.
func (n *NS) Name() string { return n.name }

// Do runs f on a thread in the namespace and returns f's error. Sockets that f opens and processes
// that f starts stay in the namespace. Goroutines that f starts do not run in it. Therefore dial
// literal addresses only: net.Dial uses separate goroutines for several addresses. f must not call
// t.FailNow or similar functions, because it runs on a separate goroutine.
func (n *NS) Do(f func() error) error {
	return onThread(func() error {
		if err := vns.Set(n.fd); err != nil {
			return fmt.Errorf("enter namespace %s: %w", n.name, err)
		}
		return f()
	})
}

// Start starts cmd in the namespace. The caller must wait for cmd.
func (n *NS) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Sysctl sets a network setting of the namespace, with dots or slashes: "net.ipv4.ip_forward".
// Interface names that contain dots need slashes.
func (n *NS) Sysctl(key, value string) error {
	if !strings.Contains(key, "/") {
		key = strings.ReplaceAll(key, ".", "/")
	}
	path := filepath.Join("/proc/sys", filepath.Clean("/"+key))
	return n.Do(func() error {
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			return fmt.Errorf("set %s in namespace %s: %w", key, n.name, err)
		}
		return nil
	})
}

// Handle returns the namespace's netlink handle for operations on routes, links and addresses that
// this package does not wrap. n owns the handle: do not close it.
func (n *NS) Handle() *netlink.Handle { return n.handle }

// Close releases the namespace. The kernel removes it, with its links, once it contains no socket or
// process. Call Close once.
func (n *NS) Close() error {
	n.handle.Close()
	if err := n.fd.Close(); err != nil {
		return fmt.Errorf("close namespace %s: %w", n.name, err)
	}
	return nil
}
