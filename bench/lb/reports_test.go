package lb

import (
	"context"
	"log/slog"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"
)

// TestReports checks that the program reports each of its writes to the maps of a capture, and no others.
func TestReports(t *testing.T) {
	c, err := capture.Open(capture.Options{Attach: capture.AttachNone, Buffer: capture.BufferRing, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	b := testBalancer(t, Config{Reports: c.Maps()})
	records, err := table.New(table.Options{
		Self: table.Owner{Node: "lb", Incarnation: 1}, KeySize: int(b.Map().KeySize()), ValueSize: int(b.Map().ValueSize()),
	})
	if err != nil {
		t.Fatal(err)
	}
	info, err := b.Map().Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	if err := c.Watch(uint32(id), records); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	open(t, b, testClient)
	poll.Eventually(t, "two new entries", func() bool { return records.Stats().Live == 2 })
	mustSend(t, b, segment{src: testClient, dst: testVIP, flags: flagRST, seq: 101})
	poll.Eventually(t, "no entries", func() bool { return records.Stats().Live == 0 })
	if s := c.Stats(); s.Events != 4 || s.ByContext[table.ContextPacket] != 4 || s.Lost() != 0 {
		t.Errorf("reports: got %+v, want 4 of packets, none lost", s)
	}
	if _, err := New(Config{Service: Service{VIP: testVIP, Backends: testBackends}, Layout: LayoutNext, Reports: c.Maps(), Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("reports of another layout: got no error, want one")
	}
}
