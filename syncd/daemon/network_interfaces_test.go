package daemon

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"mapsync/internal/netns"
	"mapsync/internal/poll"

	"github.com/vishvananda/netlink"
)

// changeLimit is the time within which syncd must detect a change of the interfaces.
const changeLimit = 10 * time.Second

func TestInterfaceChangesAreFollowed(t *testing.T) {
	ns, err := netns.New("mapsync-links")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	l := &links{log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	started := make(chan error, 1)
	// A netlink socket belongs to the namespace in which it was opened.
	go func() {
		done <- ns.Do(func() error {
			started <- l.list()
			return l.run(ctx)
		})
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if index, ok := l.Index("lo"); !ok || index == 0 {
		t.Error("index of lo: got none, want one")
	}
	inside := func(fn func() error) {
		t.Helper()
		if err := ns.Do(fn); err != nil {
			t.Fatal(err)
		}
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "first"}, PeerName: "other"}
	inside(func() error { return netlink.LinkAdd(pair) })
	poll.Within(t, changeLimit, "the new interface is listed", func() bool { _, ok := l.Index("first"); return ok })
	index, _ := l.Index("first")
	inside(func() error { return netlink.LinkSetName(pair, "second") })
	poll.Within(t, changeLimit, "the interface is listed with its new name only", func() bool {
		name, _ := l.Name(index)
		_, old := l.Index("first")
		return name == "second" && !old
	})
	inside(func() error { return netlink.LinkDel(pair) })
	poll.Within(t, changeLimit, "the interface is not listed", func() bool {
		_, byIndex := l.Name(index)
		_, byName := l.Index("second")
		return !byIndex && !byName
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
