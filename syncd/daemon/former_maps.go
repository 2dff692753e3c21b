package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/kmap"
)

// A load balancer that creates its map again may leave a program or a process that uses the former map. Its writes do not reach
// the peers, and no hook reports them, because syncd watches the map that the settings name.

const (
	// formerMapsInterval is the interval of the search for users of former maps, while such maps exist. A search takes at most a
	// 50th of the time.
	formerMapsInterval = 5 * time.Second
	formerMapsShare    = 50
	// maxFormerMaps is the maximum number of former maps of a replica; the oldest are forgotten. maxFormerUsers is the maximum
	// number of users that are listed.
	maxFormerMaps  = 16
	maxFormerUsers = 32
)

// formerMaps are the kernel maps that a replica had before the current one. The lock of the replica guards it.
type formerMaps struct {
	current uint32
	ids     []uint32 // oldest first
	users   []string // of these maps, at the last search
	unknown bool     // the last search failed
}

// follow replaces the current map.
func (f *formerMaps) follow(id uint32) {
	f.ids = slices.DeleteFunc(f.ids, func(former uint32) bool { return former == id })
	if f.current != 0 && f.current != id {
		f.ids = append(f.ids, f.current)
		f.ids = f.ids[max(0, len(f.ids)-maxFormerMaps):]
	}
	f.current = id
}

// followMap notes that the replica has attached a kernel map.
func (m *replica) followMap(id uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.former.follow(id)
}

// watchFormerMaps finds the users of former maps until ctx ends.
func (d *Daemon) watchFormerMaps(ctx context.Context) error {
	timer := time.NewTimer(formerMapsInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		began := time.Now()
		d.checkFormerMaps(ctx)
		timer.Reset(max(formerMapsInterval, formerMapsShare*time.Since(began)))
	}
}

// checkFormerMaps updates the users of the former maps of all replicas. A map that has ended, or that another replica has, is
// none any more.
func (d *Daemon) checkFormerMaps(ctx context.Context) {
	replicas := d.replicas()
	replicated := make(map[uint32]bool)
	for _, m := range replicas {
		replicated[m.kernelID()] = true
	}
	var ids []uint32
	for _, m := range replicas {
		m.mu.Lock()
		m.former.ids = slices.DeleteFunc(m.former.ids, func(id uint32) bool { return replicated[id] || !kmap.MapLives(id) })
		ids = append(ids, m.former.ids...)
		m.mu.Unlock()
	}
	var users map[uint32][]string
	var err error
	if len(ids) > 0 {
		users, err = usersOfMaps(ctx, ids)
	}
	if ctx.Err() != nil {
		return // syncd stops
	}
	for _, m := range replicas {
		m.setFormerUsers(users, err)
	}
}

// usersOfMaps returns the programs and processes that use each of these maps, with type and id.
func usersOfMaps(ctx context.Context, ids []uint32) (map[uint32][]string, error) {
	programs, programsErr := kmap.ProgramsOfMaps(ctx, ids)
	processes, processesErr := kmap.ProcessesOfMaps(ctx, ids)
	users := make(map[uint32][]string)
	for _, id := range ids {
		for _, p := range programs[id] {
			users[id] = append(users[id], fmt.Sprintf("program %s (%s, id %d)", p.Name, p.Type, p.ID))
		}
		for _, p := range processes[id] {
			users[id] = append(users[id], fmt.Sprintf("process %s (pid %d)", p.Name, p.PID))
		}
	}
	return users, errors.Join(programsErr, processesErr)
}

// setFormerUsers stores the users of the former maps, and logs those that it has not logged.
func (m *replica) setFormerUsers(users map[uint32][]string, err error) {
	m.mu.Lock()
	var found []string
	for _, id := range m.former.ids {
		for _, user := range users[id] {
			found = append(found, fmt.Sprintf("%s uses map id %d", user, id))
		}
	}
	found = found[:min(len(found), maxFormerUsers)]
	fresh := slices.DeleteFunc(slices.Clone(found), func(user string) bool { return slices.Contains(m.former.users, user) })
	gone := len(m.former.users) > 0 && len(found) == 0 && err == nil
	failed := err != nil && len(m.former.ids) > 0
	logFailure := failed && !m.former.unknown
	m.former.users, m.former.unknown = found, failed
	m.mu.Unlock()
	if len(fresh) > 0 {
		m.log.Warn("a former map is still used, its changes do not reach peers", "users", strings.Join(fresh, ", "),
			"hint", "restart or reload these programs and processes, so that they use the current map")
	}
	if gone {
		m.log.Info("former maps are not used any more")
	}
	if logFailure {
		m.log.Warn("failed to list the users of former maps", "error", err, "hint", "grant CAP_SYS_ADMIN; changes of a former map do not reach peers")
	}
}
