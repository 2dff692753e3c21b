package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"mapsync/syncd/table"
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
// namespace.
func processEnded(p table.Process) bool {
	return inInitialPIDNamespace() && hasEnded(fmt.Sprintf("/proc/%d/stat", p.ID), p.Start)
}

// hasEnded reports whether the process that started at a time since boot, in nanoseconds, is not the one of a file like
// /proc/PID/stat, or is a zombie. It returns false if the file cannot be read.
func hasEnded(path string, start int64) bool {
	data, err := os.ReadFile(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	// The name, which may contain anything, is in the last parentheses. The state follows, and 19 fields later the start.
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return false
	}
	began, err := strconv.ParseInt(fields[19], 10, 64)
	return err == nil && (began != start/tick || fields[0] == "Z" || fields[0] == "X")
}
