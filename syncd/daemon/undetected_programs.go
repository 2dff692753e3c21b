package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// programsInterval is the interval of the search for programs that use a replicated map.
const programsInterval = 10 * time.Second

// programSearch is the state of the search for programs whose writes the hooks do not detect.
type programSearch struct {
	failures failureLog
	known    atomic.Bool            // the last search succeeded, or hooks detect the writes of all programs
	problem  atomic.Pointer[string] // why the last search failed; nil if it did not
}

// programsProblem returns why the search for programs whose writes the hooks do not detect fails, or "".
func (d *Daemon) programsProblem() string {
	if text := d.programs.problem.Load(); text != nil {
		return *text
	}
	return ""
}

// watchPrograms finds the programs whose writes the hooks do not detect, until ctx ends. Without hooks on
// map functions these are all programs. openKernel logs that. fexit from 6.1 on detects the writes of all.
func (d *Daemon) watchPrograms(ctx context.Context) error {
	if !d.capture.HooksMaps() {
		return nil
	}
	if d.capture.Attached().Detects(ebpf.Kprobe) {
		d.programs.known.Store(true)
		return nil
	}
	tick := time.NewTicker(programsInterval)
	defer tick.Stop()
	for {
		d.checkPrograms(ctx, kmap.ProgramsOfMaps)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// checkPrograms updates replica.undetected of all maps. list returns the programs of maps. After an error
// checkPrograms changes none, and the programs count as not known.
func (d *Daemon) checkPrograms(ctx context.Context, list func(context.Context, []uint32) (map[uint32][]kmap.Program, error)) {
	replicas := d.replicas()
	var ids []uint32
	for _, m := range replicas {
		ids = append(ids, m.kernelID())
	}
	programs, err := list(ctx, ids)
	if ctx.Err() != nil {
		return // syncd stops
	}
	if err != nil {
		d.recordNoPrograms(err)
		return
	}
	d.programs.problem.Store(nil)
	if d.programs.failures.succeeded() {
		d.log.Info("programs that use maps are listed again")
	}
	for i, m := range replicas {
		if m.kernelID() == ids[i] {
			m.setUndetected(programs[ids[i]])
		}
	}
	d.programs.known.Store(true)
}

// recordNoPrograms stores and logs that the programs are not known.
func (d *Daemon) recordNoPrograms(err error) {
	hint := "raise LimitNOFILE, or free memory"
	if errors.Is(err, os.ErrPermission) {
		hint = "grant CAP_SYS_ADMIN, or use attach: fexit on kernel 6.1 or later"
	}
	text := fmt.Sprintf("%v (%s)", err, hint)
	d.programs.problem.Store(&text)
	d.programs.known.Store(false)
	if d.programs.failures.failed() {
		d.log.Warn("failed to list the programs that use maps, syncd does not know whose writes only scans find", "error", err, "hint", hint)
	}
}

// kernelID returns the id of the attached kernel map, 0 if none is attached.
func (m *replica) kernelID() uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kernel == nil {
		return 0
	}
	return m.kernel.source
}

// undetected returns the programs whose writes an attach method does not detect, with type and id.
func undetected(programs []kmap.Program, attach capture.Attach) (names []string) {
	for _, p := range programs {
		if !attach.Detects(p.Type) {
			names = append(names, fmt.Sprintf("%s (%s, id %d)", p.Name, p.Type, p.ID))
		}
	}
	return names
}

// setUndetected stores the programs whose writes the hooks do not detect, and logs a change.
func (m *replica) setUndetected(programs []kmap.Program) {
	names := undetected(programs, m.daemon.capture.Attached())
	m.mu.Lock()
	changed := !slices.Equal(m.undetected, names)
	m.undetected = names
	m.mu.Unlock()
	if changed && len(names) > 0 {
		m.log.Warn("writes of programs are found by scans only", "programs", strings.Join(names, ", "),
			"scan_interval", m.daemon.config.ScanInterval.String(), "hint", "use attach: fexit on kernel 6.1 or later")
	}
}
