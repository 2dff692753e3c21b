package daemon

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"mapsync/syncd/table"

	"golang.org/x/sys/unix"
)

// initialPIDNamespace is the inode number of the initial PID namespace: PROC_PID_INIT_INO in the kernel.
const initialPIDNamespace = "pid:[4026531836]"

// inInitialPIDNamespace reports whether /proc has the processes of the host under the IDs that hooks report.
var inInitialPIDNamespace = sync.OnceValue(func() bool {
	link, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && link == initialPIDNamespace
})

// tick is the unit of times in /proc, in nanoseconds: USER_HZ is 100.
const tick = 10_000_000

// processEnded reports whether a process has ended. It returns false if this is not known, because syncd is in another PID
// namespace, or because /proc hides the process.
func processEnded(p table.Process) bool { return inInitialPIDNamespace() && hasEnded("/proc", p) }

// hasEnded reports whether a process no longer runs: it is not in proc, a directory like /proc, or another process has its
// ID, or it is a zombie. It returns false if this is not known.
func hasEnded(proc string, p table.Process) bool {
	data, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(int(p.ID)), "stat"))
	if errors.Is(err, fs.ErrNotExist) {
		// The mount option hidepid of /proc hides the processes of other users. ProtectProc=invisible of systemd sets it.
		return errors.Is(unix.Kill(int(p.ID), 0), unix.ESRCH)
	}
	// The name, which may contain anything, is in the last parentheses. The state follows, and 19 fields later the start.
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return false
	}
	began, err := strconv.ParseInt(fields[19], 10, 64)
	return err == nil && (began != p.Start/tick || fields[0] == "Z" || fields[0] == "X")
}
