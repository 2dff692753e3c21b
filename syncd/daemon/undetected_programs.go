package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/kmap"
)

// programsInterval is the interval of the search for programs that use a replicated map.
const programsInterval = 10 * time.Second

// watchPrograms finds the programs whose writes the hooks do not detect, until ctx ends. Without hooks on
// map functions these are all programs. openKernel logs that.
func (d *Daemon) watchPrograms(ctx context.Context) error {
	if !d.capture.HooksMaps() {
		return nil
	}
	tick := time.NewTicker(programsInterval)
	defer tick.Stop()
	for {
		if err := d.checkPrograms(); errors.Is(err, os.ErrPermission) {
			d.log.Info("cannot list the programs that use maps", "error", err, "hint", "listing programs needs CAP_SYS_ADMIN")
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// checkPrograms updates replica.undetected of all maps. After an error it changes none.
func (d *Daemon) checkPrograms() error {
	replicas := d.replicas()
	var ids []uint32
	for _, m := range replicas {
		ids = append(ids, m.kernelID())
	}
	programs, err := kmap.ProgramsOfMaps(ids)
	if err != nil {
		return err
	}
	for i, m := range replicas {
		if m.kernelID() == ids[i] {
			m.setUndetected(programs[ids[i]])
		}
	}
	return nil
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

// setUndetected stores the programs whose writes the hooks do not detect, and logs a change.
func (m *replica) setUndetected(programs []kmap.Program) {
	var names []string
	for _, p := range programs {
		if !m.daemon.capture.Attached().Detects(p.Type) {
			names = append(names, fmt.Sprintf("%s (%s, id %d)", p.Name, p.Type, p.ID))
		}
	}
	m.mu.Lock()
	changed := !slices.Equal(m.undetected, names)
	m.undetected = names
	m.mu.Unlock()
	if changed && len(names) > 0 {
		m.log.Warn("writes of programs are found by scans only", "programs", strings.Join(names, ", "),
			"scan_interval", m.daemon.config.ScanInterval.String(), "hint", "use attach: fexit on kernel 6.1 or later")
	}
}
