package vm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/internal/vm/guest"
)

// platform is what differs between the architectures of the guest.
type platform struct {
	emulator string
	machine  []string // arguments
	cpu      string   // of the emulated processor
	console  string   // serial line
}

// cx16 is disabled, because 6.12 crashes early with it under QEMU 7.2. The emulation of arm64's pointer
// authentication is slow unless the algorithm is QEMU's own.
var platforms = map[string]platform{
	"amd64": {emulator: "qemu-system-x86_64", cpu: "max,-cx16", console: "ttyS0"},
	"arm64": {emulator: "qemu-system-aarch64", machine: []string{"-M", "virt"}, cpu: "max,pauth-impdef=on", console: "ttyAMA0"},
}

// machine is a running emulator.
type machine struct {
	cfg        *Config
	cmd        *exec.Cmd
	port       *os.File
	conn       *guest.Conn
	console    *tail
	started    time.Time
	stallTimer *time.Timer   // fires when no frame has arrived for StallTimeout
	exited     chan struct{} // closed after the emulator has exited; waitErr is then set
	waitErr    error
}

// startMachine starts the emulator with the image and a socket for the port.
func startMachine(cfg *Config, image *os.File) (*machine, error) {
	path, err := exec.LookPath(platforms[cfg.Kernel.Arch()].emulator)
	if err != nil {
		return nil, ErrNoQEMU
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close() //nolint:errcheck // the child has its own
	m := &machine{
		cfg: cfg, port: ours, conn: guest.NewConn(ours), console: &tail{limit: 64 << 10},
		started: time.Now(), stallTimer: time.NewTimer(bootTimeout + cfg.StallTimeout), exited: make(chan struct{}),
	}
	m.cmd = exec.Command(path, arguments(cfg)...)
	m.cmd.ExtraFiles = []*os.File{theirs, image} // descriptors 3 and 4
	m.cmd.Stdout, m.cmd.Stderr = m.console, m.console
	m.cmd.WaitDelay = time.Second
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		Setpgid:   true, // Ctrl-C at the terminal must only reach the program in the guest
	}
	start := make(chan error)
	go m.runEmulator(start)
	if err := <-start; err != nil {
		return nil, errors.Join(fmt.Errorf("start emulator: %w", err), ours.Close())
	}
	return m, nil
}

// runEmulator starts the emulator and waits for its exit on one thread. The kernel sends Pdeathsig
// when the thread that started the child ends.
func (m *machine) runEmulator(start chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := m.cmd.Start()
	start <- err
	if err != nil {
		return
	}
	m.waitErr = m.cmd.Wait()
	close(m.exited)
}

// stop kills the emulator and waits for its exit.
func (m *machine) stop() {
	_ = m.cmd.Process.Kill()
	<-m.exited
	_ = m.port.Close()
}

// signal forwards a signal to the program. A signal sent before the program starts waits in the
// socket.
func (m *machine) signal(sig os.Signal) {
	if s, ok := sig.(syscall.Signal); ok {
		if err := m.conn.Write(guest.FrameSignal, []byte{byte(s)}); err != nil {
			m.cfg.Log.Warn("signal did not reach the program", "signal", s.String(), "error", err)
		}
	}
}

// arguments returns the arguments of the emulator. Default devices are disabled, so the kernel has
// nothing to probe.
func arguments(cfg *Config) []string {
	p := platforms[cfg.Kernel.Arch()]
	accel, cpu := "tcg,thread=multi", p.cpu
	if cfg.Accel != "tcg" {
		accel, cpu = cfg.Accel, "host"
	}
	list := slices.Clone(p.machine)
	if cfg.Icount {
		accel = "tcg,thread=single"
		list = append(list, "-icount", "shift=0,sleep=off")
	}
	if cfg.Monitor != "" {
		list = append(list, "-qmp", "unix:"+cfg.Monitor+",server=on,wait=off")
	}
	list = append(list, cfg.Link.arguments()...)
	return append(list,
		"-accel", accel, "-cpu", cpu, "-smp", fmt.Sprintf("%d,maxcpus=%d", cfg.CPUs, max(cfg.CPUs, cfg.PossibleCPUs)), "-m", cfg.Memory,
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-chardev", "socket,id=port,fd=3", "-device", "virtio-serial-pci",
		"-device", "virtserialport,chardev=port,name="+guest.PortName,
		"-kernel", cfg.Kernel.Image(), "-initrd", "/proc/self/fd/4",
		// Warnings and more severe messages go to the console. nowatchdog: a host short of CPU time
		// would look like a lockup.
		"-append", strings.TrimSpace("console="+p.console+" quiet loglevel=5 panic=-1 oops=panic nowatchdog "+cfg.Kernel.Parameter))
}

// arguments returns the arguments of the emulator for a link.
func (l Link) arguments() []string {
	if l.Socket == "" {
		return nil
	}
	server, number := "off", 2
	if l.Listen {
		server, number = "on", 1
	}
	return []string{
		"-netdev", fmt.Sprintf("stream,id=link,server=%s,addr.type=unix,addr.path=%s", server, l.Socket),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=link,romfile=,mac=52:54:00:00:00:%02x", number),
	}
}

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create socket pair: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil { // lets Close end a pending Read
		return nil, nil, fmt.Errorf("create socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "port"), os.NewFile(uintptr(fds[1]), "port of the emulator"), nil
}

// tail stores the end of the data written to it.
type tail struct {
	limit    int
	mu       sync.Mutex
	buf      []byte
	bootedAt int // length of the stored data before the mark
}

var _ io.Writer = (*tail)(nil)

// Write never returns an error.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.limit; over > t.limit {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.bootedAt = max(0, t.bootedAt-over)
	}
	return len(p), nil
}

// markBooted makes [tail.sinceBoot] omit all data written so far.
func (t *tail) markBooted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bootedAt = len(t.buf)
}

// sinceBoot returns the last lines written after the mark.
func (t *tail) sinceBoot() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text(t.bootedAt)
}

// String returns the last lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text(0)
}

// text removes the carriage returns of a serial line.
func (t *tail) text(from int) string {
	text := string(t.buf[max(from, len(t.buf)-t.limit):])
	return strings.TrimSpace(strings.ReplaceAll(text, "\r", ""))
}
