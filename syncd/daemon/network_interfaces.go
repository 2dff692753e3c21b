package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// links holds the network interfaces of this network namespace by index and by name, for fields
// that contain an interface. The kernel reports every change.
type links struct {
	log      *slog.Logger
	failures failureLog // of run

	mu      sync.RWMutex
	byIndex map[uint32]string
	byName  map[string]uint32
}

// newLinks returns the current interfaces.
func newLinks(log *slog.Logger) (*links, error) {
	l := &links{log: log}
	if err := l.list(); err != nil {
		return nil, err
	}
	return l, nil
}

// Name returns the name of the interface with an index, and whether it exists.
func (l *links) Name(index uint32) (string, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	name, ok := l.byIndex[index]
	return name, ok
}

// Index returns the index of the interface with a name, and whether it exists.
func (l *links) Index(name string) (uint32, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	index, ok := l.byName[name]
	return index, ok
}

// indexes returns the indexes of all interfaces.
func (l *links) indexes() map[uint64]bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	list := make(map[uint64]bool, len(l.byIndex))
	for index := range l.byIndex {
		list[uint64(index)] = true
	}
	return list
}

// relist is the pause before a new subscription after the kernel's messages have ended.
const relist = time.Second

// run follows the changes of the interfaces until ctx ends.
func (l *links) run(ctx context.Context) error {
	l.repeat(ctx, l.follow)
	return nil
}

// repeat calls follow again and again until ctx ends. It logs the first of successive errors.
func (l *links) repeat(ctx context.Context, follow func(context.Context) error) {
	for ctx.Err() == nil {
		if err := follow(ctx); err != nil && l.failures.failed() {
			l.log.Warn("failed to watch network interfaces, retrying", "error", err,
				"hint", "let syncd open netlink sockets (RestrictAddressFamilies of the unit); it detects new interfaces late otherwise")
		}
		select {
		case <-ctx.Done():
		case <-time.After(relist):
		}
	}
}

// following logs the end of successive errors.
func (l *links) following() {
	if l.failures.succeeded() {
		l.log.Info("watching network interfaces again")
	}
}

// follow applies the kernel's messages about interfaces until ctx or the messages end.
func (l *links) follow(ctx context.Context) error {
	updates := make(chan netlink.LinkUpdate, 64)
	var failure error
	err := netlink.LinkSubscribeWithOptions(updates, ctx.Done(), netlink.LinkSubscribeOptions{
		// netlink calls it before it closes updates, in the same goroutine.
		ErrorCallback: func(err error) { failure = err },
	})
	if err != nil {
		return fmt.Errorf("subscribe to interfaces: %w", err)
	}
	// This reads the changes before the subscription.
	if err := l.list(); err != nil {
		return err
	}
	l.following()
	for u := range updates {
		l.note(u.Header.Type != unix.RTM_DELLINK, uint32(u.Attrs().Index), u.Attrs().Name)
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(errors.New("netlink subscription ended"), failure)
}

// list reads all interfaces from the kernel.
func (l *links) list() error {
	all, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list interfaces: %w", err)
	}
	byIndex, byName := make(map[uint32]string, len(all)), make(map[string]uint32, len(all))
	for _, link := range all {
		byIndex[uint32(link.Attrs().Index)], byName[link.Attrs().Name] = link.Attrs().Name, uint32(link.Attrs().Index)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byIndex, l.byName = byIndex, byName
	return nil
}

// note adds, renames or removes an interface.
func (l *links) note(there bool, index uint32, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.byIndex[index]; ok && l.byName[old] == index {
		delete(l.byName, old) // renamed
	}
	delete(l.byIndex, index)
	if there {
		l.byIndex[index], l.byName[name] = name, index
	}
}
