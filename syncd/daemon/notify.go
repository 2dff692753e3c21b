package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"strconv"
	"time"
)

// The messages of sd_notify(3).
const (
	notifyReady    = "READY=1"
	notifyStopping = "STOPPING=1"
	notifyWatchdog = "WATCHDOG=1"
	notifyStatus   = "STATUS="
)

// notifier reports to the service manager over the socket in NOTIFY_SOCKET. It does nothing if
// the variable is not set.
type notifier struct {
	socket string
	// watchdog is the maximum time between two watchdog messages; 0: the manager expects none.
	watchdog time.Duration
	log      *slog.Logger
	failures failureLog
}

func newNotifier(log *slog.Logger) *notifier {
	n := &notifier{socket: os.Getenv("NOTIFY_SOCKET"), log: log}
	limit, err := strconv.ParseUint(os.Getenv("WATCHDOG_USEC"), 10, 63)
	if pid := os.Getenv("WATCHDOG_PID"); err == nil && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(min(limit, math.MaxInt64/uint64(time.Microsecond))) * time.Microsecond
	}
	return n
}

// send sends one message. It logs the first of successive errors and their end, because the service
// manager decides on the consequences.
func (n *notifier) send(message string) {
	if n.socket == "" {
		return
	}
	err := sendTo(n.socket, message)
	switch {
	case err == nil && n.failures.succeeded():
		n.log.Info("service manager notified again")
	case err != nil && n.failures.failed():
		n.log.Warn("failed to notify the service manager", "error", err,
			"hint", "let syncd write to the socket in NOTIFY_SOCKET; with WatchdogSec the service manager restarts syncd otherwise")
	}
}

func sendTo(socket, message string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, err = conn.Write([]byte(message))
	return errors.Join(err, conn.Close())
}

// run reports that the daemon is ready, and then its status and liveness until ctx ends. It calls
// alive for each report. If the daemon's locks are stuck, alive does not return, and the reports
// stop.
func (n *notifier) run(ctx context.Context, alive func() string) error {
	if n.socket == "" {
		return nil
	}
	n.send(notifyReady)
	defer n.send(notifyStopping)
	interval := 10 * time.Second // for the status alone
	if n.watchdog > 0 {
		interval = n.watchdog / 3
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		message := notifyStatus + alive()
		if n.watchdog > 0 {
			message += "\n" + notifyWatchdog
		}
		n.send(message)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// alive takes the locks that all work needs. It returns a line for `systemctl status`.
func (d *Daemon) alive() string {
	r := d.Ready()
	if !r.Ready {
		return fmt.Sprintf("not ready, %d reasons: see syncd status", len(r.Missing))
	}
	return fmt.Sprintf("ready, %d maps, %d peers", len(d.replicas()), d.replicator.Stats().Peers)
}
