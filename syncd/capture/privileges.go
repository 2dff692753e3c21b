package capture

import (
	"fmt"
	"os"
	"strings"

	"mapsync/syncd/privilege"

	"golang.org/x/sys/unix"
)

// addMissingCapabilities adds to err the capabilities that this process lacks for the hooks. The
// kernel's error rarely names them.
func addMissingCapabilities(err error, attach Attach, buffer Buffer) error {
	lacking := lackingCapabilities(attach, buffer)
	if err == nil || len(lacking) == 0 {
		return err
	}
	return fmt.Errorf("%w; this process lacks %s", err, strings.Join(lacking, ", "))
}

func lackingCapabilities(attach Attach, buffer Buffer) (lacking []string) {
	admin := privilege.Has(unix.CAP_SYS_ADMIN)
	if !admin && !privilege.Has(unix.CAP_BPF) {
		lacking = append(lacking, "CAP_BPF")
	}
	if attach != AttachNone && !admin && !privilege.Has(unix.CAP_PERFMON) {
		lacking = append(lacking, "CAP_PERFMON")
	}
	// CAP_SYSLOG makes the addresses in /proc/kallsyms readable. CAP_SYS_ADMIN does not include it.
	if attach != AttachNone && attach != AttachSyscall && !privilege.Has(unix.CAP_SYSLOG) {
		lacking = append(lacking, "CAP_SYSLOG")
	}
	usesPerf := attach == AttachKprobe || buffer == BufferPerf
	if !admin && usesPerf && perfNeedsAdmin() {
		lacking = append(lacking, "CAP_SYS_ADMIN (kprobes and perf buffers need it while kernel.perf_event_paranoid is above 2)")
	}
	return lacking
}

// perfNeedsAdmin returns true if CAP_PERFMON is not sufficient for perf events. The kernels of
// Debian and Ubuntu have such a perf_event_paranoid level, above 2, and it is their default.
func perfNeedsAdmin() bool {
	text, err := os.ReadFile("/proc/sys/kernel/perf_event_paranoid")
	if err != nil {
		return false
	}
	var level int
	_, err = fmt.Sscan(string(text), &level)
	return err == nil && level > 2
}
