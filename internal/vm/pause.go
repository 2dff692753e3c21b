package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// Pause stops the processors and the clocks of a running machine for d, by the emulator's monitor. Afterwards, the clocks
// of the guest are behind by d. monitor is Config.Monitor of the machine.
func Pause(ctx context.Context, monitor string, d time.Duration) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", monitor)
	if err != nil {
		return fmt.Errorf("connect to the monitor: %w", err)
	}
	defer conn.Close() //nolint:errcheck // all commands have been answered
	m := bufio.NewReader(conn)
	if _, err := m.ReadBytes('\n'); err != nil { // the greeting
		return fmt.Errorf("read the monitor's greeting: %w", err)
	}
	for _, command := range []string{"qmp_capabilities", "stop"} {
		if err := execute(conn, m, command); err != nil {
			return err
		}
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return execute(conn, m, "cont")
}

// execute sends a command without arguments and reads its answer. Events come between the answers.
func execute(conn net.Conn, m *bufio.Reader, command string) error {
	if _, err := fmt.Fprintf(conn, "{%q: %q}\n", "execute", command); err != nil {
		return fmt.Errorf("send %s to the monitor: %w", command, err)
	}
	for {
		line, err := m.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("read the monitor's answer to %s: %w", command, err)
		}
		var answer struct {
			Return *json.RawMessage
			Error  struct{ Desc string }
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			return fmt.Errorf("parse the monitor's answer to %s: %w", command, err)
		}
		switch {
		case answer.Error.Desc != "":
			return fmt.Errorf("monitor refuses %s: %s", command, answer.Error.Desc)
		case answer.Return != nil:
			return nil
		}
	}
}
