package guest

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

type mount struct {
	source, target, fstype string
	// optional marks file systems that some kernels lack.
	optional bool
}

// mounts lists the mounts in order. All of them must exist before the program starts, because a BPF
// library looks for /proc only once, when it is loaded.
var mounts = []mount{
	{"proc", "/proc", "proc", false},
	{"sysfs", "/sys", "sysfs", false},
	{"devtmpfs", "/dev", "devtmpfs", false},
	{"devpts", "/dev/pts", "devpts", false},
	{"tmpfs", "/dev/shm", "tmpfs", false},
	{"tmpfs", "/run", "tmpfs", false},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", false},
	{"bpf", "/sys/fs/bpf", "bpf", false},
	{"tracefs", "/sys/kernel/tracing", "tracefs", false},
	{"debugfs", "/sys/kernel/debug", "debugfs", true},
	{"securityfs", "/sys/kernel/security", "securityfs", true},
}

// files are files that programs expect. Name resolution works without a resolver.
var files = map[string]string{
	"/etc/hosts":  "127.0.0.1 localhost\n::1 localhost\n",
	"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
	"/etc/group":  "root:x:0:\nnogroup:x:65534:\n",
}

// prepare sets up the system on a kernel with only an initramfs.
func prepare(spec *Spec) error {
	for _, m := range mounts {
		// sysfs creates its own mount points and refuses this MkdirAll.
		_ = os.MkdirAll(m.target, 0o755)
		if err := unix.Mount(m.source, m.target, m.fstype, 0, ""); err != nil && !m.optional {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, dir := range append([]string{"/tmp", "/root", "/var/tmp", "/etc", spec.Dir}, spec.Dirs...) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create directory: %w", err)
		}
	}
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
			return fmt.Errorf("open directory to all: %w", err)
		}
	}
	for path, content := range files {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return fmt.Errorf("write system file: %w", err)
		}
	}
	_ = os.Symlink("/proc/self/fd", "/dev/fd")
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		_ = os.Symlink(fmt.Sprintf("/proc/self/fd/%d", i), "/dev/"+name)
	}
	if err := raiseFileLimit(); err != nil {
		return err
	}
	for _, path := range spec.Modules {
		if err := loadModule(path); err != nil {
			return err
		}
	}
	return loopbackUp()
}

// raiseFileLimit sets a high hard limit of open files, as a service manager does. It keeps the
// kernel's limit of locked memory, so that tests show whether programs raise it themselves.
func raiseFileLimit() error {
	limit := unix.Rlimit{Cur: 1024, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("set limit of open files: %w", err)
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open module: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("load module %s: %w", filepath.Base(path), err)
	}
	return nil
}

// loopbackUp sets the loopback interface up with SIOCSIFFLAGS. This avoids a netlink library in init.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // a socket without data has nothing to report
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("name loopback: %w", err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	return nil
}

// sendTree writes a file or a directory as a tar stream. Names are relative to root ("." is root
// itself). It sends only directories and regular files. A missing path sends nothing, because the host
// checks for required files.
func sendTree(w io.Writer, root string) error {
	if _, err := os.Stat(root); err != nil {
		return nil
	}
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || (!d.IsDir() && !d.Type().IsRegular()) {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return sendEntry(tw, path, rel)
	})
	if err == nil {
		err = tw.Close()
	}
	if err != nil {
		return fmt.Errorf("send %s: %w", root, err)
	}
	return nil
}

func sendEntry(tw *tar.Writer, path, name string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	header.Name = name
	if err := tw.WriteHeader(header); err != nil || info.IsDir() {
		return err
	}
	_, err = io.CopyN(tw, f, info.Size())
	return err
}
