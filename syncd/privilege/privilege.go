// Package privilege finds why the kernel refuses bpf(2) to this process.
package privilege

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// The errors of AllowBPF, each with its remedy.
var (
	// ErrSeccomp: a filter of system calls denies bpf(2).
	ErrSeccomp = errors.New("a seccomp filter denies bpf(2), although the process has the capabilities for it; " +
		"allow bpf and perf_event_open: in the seccomp profile of the container (Kubernetes: seccompProfile, docker: --security-opt seccomp=FILE), " +
		"or with SystemCallFilter=bpf in the systemd unit")
	// ErrCapability: the process has neither CAP_BPF nor CAP_SYS_ADMIN.
	ErrCapability = errors.New("this process has neither CAP_BPF nor CAP_SYS_ADMIN; run syncd as root or with the capabilities of deploy/syncd.service")
	// ErrUserNamespace: the capabilities of the process are those of a user namespace.
	ErrUserNamespace = errors.New("this process is in a user namespace, whose capabilities do not allow bpf(2); " +
		"run it in the user namespace of the host (Kubernetes: hostUsers: true, docker: --userns=host)")
	// ErrLockedMemory: the limit of locked memory is too low, and cannot be raised.
	ErrLockedMemory = errors.New("the limit of locked memory cannot be raised, which kernels before 5.11 require; " +
		"grant CAP_SYS_RESOURCE, or set LimitMEMLOCK=infinity in the systemd unit")
	// ErrModule: something else in the kernel refuses bpf(2).
	ErrModule = errors.New("a security module of the kernel refuses bpf(2); read its reason with journalctl -k, and allow bpf(2) in its policy")
)

// AllowBPF raises the limit of locked memory, to which kernels before 5.11 charge BPF maps, and creates a map. After an error,
// this process cannot use bpf(2). The error has the cause and the remedy.
func AllowBPF() error {
	limitErr := rlimit.RemoveMemlock()
	err := createMap()
	if err == nil && limitErr == nil {
		return nil
	}
	if err == nil {
		return fmt.Errorf("%w: %w", ErrLockedMemory, limitErr)
	}
	if !refused(err) {
		return fmt.Errorf("create a BPF map: %w", err)
	}
	return fmt.Errorf("create a BPF map: %w: %w", err, cause(limitErr))
}

// cause returns why the kernel refuses to create a map. limitErr is why the limit of locked memory cannot be raised.
func cause(limitErr error) error {
	switch {
	case !Has(unix.CAP_BPF) && !Has(unix.CAP_SYS_ADMIN):
		return ErrCapability
	case inUserNamespace():
		return ErrUserNamespace
	case filtered() && refused(bpf(unknownCommand, nil, 0)):
		return ErrSeccomp
	case limitErr != nil:
		return fmt.Errorf("%w: %w", ErrLockedMemory, limitErr)
	}
	return ErrModule
}

// refused reports whether an error is one by which filters and the kernel refuse a system call.
func refused(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS)
}

// Has reports whether a capability of this process is effective.
func Has(bit uint) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return err == nil && data[bit/32].Effective&(1<<(bit%32)) != 0
}

// filtered reports whether this process has a filter of system calls.
func filtered() bool {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if mode, found := strings.CutPrefix(line, "Seccomp:"); found {
			return strings.TrimSpace(mode) == "2" // SECCOMP_MODE_FILTER
		}
	}
	return false
}

// inUserNamespace reports whether this process is in a user namespace other than that of the host, which has all users.
func inUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
}

// Commands of bpf(2). The kernel answers EINVAL to an unknown one, from a process with CAP_BPF or CAP_SYS_ADMIN.
const (
	createMapCommand = 0
	unknownCommand   = 1 << 20
)

func bpf(command uintptr, attr unsafe.Pointer, size uintptr) error {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attr), size)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

// createMap creates an array of one element, and closes it.
func createMap() error {
	attr := struct{ mapType, keySize, valueSize, maxEntries uint32 }{unix.BPF_MAP_TYPE_ARRAY, 4, 4, 1}
	return bpf(createMapCommand, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}
