package daemon

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// manager returns the socket that receives the messages of a notifier.
func manager(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	return conn
}

func receive(t *testing.T, conn *net.UnixConn, within time.Duration) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1024)
	n, err := conn.Read(buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

func TestServiceManagerIsNotified(t *testing.T) {
	for name, socket := range map[string]string{"path": filepath.Join(t.TempDir(), "notify"), "abstract": "@mapsync-test-" + filepath.Base(t.TempDir())} {
		t.Run(name, func(t *testing.T) {
			conn := manager(t, socket)
			t.Setenv("WATCHDOG_USEC", "60000")
			var stuck atomic.Bool
			ended := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- newNotifier(slog.New(slog.DiscardHandler)).run(ctx, func() string {
					if stuck.Load() {
						<-ended
					}
					return "well"
				})
			}()
			if got := receive(t, conn, 10*time.Second); got != notifyReady {
				t.Errorf("first message: got %q, want READY=1", got)
			}
			for range 3 {
				if got := receive(t, conn, 10*time.Second); got != "STATUS=well\nWATCHDOG=1" {
					t.Errorf("next message: got %q, want status and watchdog", got)
				}
			}
			// A daemon whose locks are stuck sends no watchdog message.
			stuck.Store(true)
			for receive(t, conn, 500*time.Millisecond) != "" {
			}
			close(ended)
			stuck.Store(false)
			cancel()
			// run can send its last message only if the test reads: the socket holds few messages.
			for got := ""; got != notifyStopping; {
				if got = receive(t, conn, 10*time.Second); got == "" {
					t.Fatal("messages after the end of the context: got none for 10 s, want STOPPING=1")
				}
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if got := receive(t, conn, 100*time.Millisecond); got != "" {
				t.Errorf("message after STOPPING=1: got %q, want none", got)
			}
		})
	}
}

func TestWatchdogOfAnotherProcess(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "1000000")
	t.Setenv("WATCHDOG_PID", "1")
	n := newNotifier(slog.New(slog.DiscardHandler))
	if n.watchdog != 0 || n.run(t.Context(), func() string { return "" }) != nil {
		t.Errorf("notifier for another process: got %+v, want no watchdog and no error", n)
	}
	if err := sendTo(filepath.Join(t.TempDir(), "none"), notifyReady); err == nil || !strings.Contains(err.Error(), "notify") {
		t.Errorf("send without a manager: got error %v, want \"notify\"", err)
	}
}
