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

// links knows the network interfaces of this network namespace by index and name,
// for fields that hold one. The kernel tells it of every change.
type links struct {
	log *slog.Logger

	mu      sync.RWMutex
	byIndex map[uint32]string
	byName  map[string]uint32
}

// newLinks returns the interfaces that there are now.
func newLinks(log *slog.Logger) (*links, error) {
	l := &links{log: log}
	if err := l.list(); err != nil {
		return nil, err
	}
	return l, nil
}

// Name returns the name of an interface.
func (l *links) Name(index uint32) (string, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	name, ok := l.byIndex[index]
	return name, ok
}

// Index returns the index of an interface.
func (l *links) Index(name string) (uint32, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	index, ok := l.byName[name]
	return index, ok
}

// relist is the pause before the kernel is asked again after its messages ceased.
const relist = time.Second

// run follows the interfaces until ctx ends.
func (l *links) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := l.follow(ctx); err != nil {
			l.log.Warn("interfaces are not followed, trying again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(relist):
		}
	}
	return nil
}

// follow takes in what the kernel tells, until ctx or the messages end.
func (l *links) follow(ctx context.Context) error {
	updates := make(chan netlink.LinkUpdate, 64)
	var failure error
	err := netlink.LinkSubscribeWithOptions(updates, ctx.Done(), netlink.LinkSubscribeOptions{
		// Called before updates is closed, and by the goroutine that closes it.
		ErrorCallback: func(err error) { failure = err },
	})
	if err != nil {
		return fmt.Errorf("subscribe to interfaces: %w", err)
	}
	// What changed before the subscription.
	if err := l.list(); err != nil {
		return err
	}
	for u := range updates {
		l.note(u.Header.Type != unix.RTM_DELLINK, uint32(u.Attrs().Index), u.Attrs().Name)
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(errors.New("the kernel's messages about interfaces ended"), failure)
}

// list asks for all interfaces.
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

// note enters an interface, or takes it out.
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
