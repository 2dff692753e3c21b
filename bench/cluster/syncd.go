package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/daemon"
)

// clockAhead is the difference of syncd's wall clock to the machine's in nanoseconds.
var clockAhead atomic.Int64

// runSyncd runs the daemon with another source of events. It announces its capture's maps and waits
// until the data plane reports there, as hooks would from the start.
func runSyncd(s settings) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("node", s.Config.NodeName)
	clockAhead.Store(int64(s.ClockAhead))
	d, err := daemon.New(daemon.Options{
		Config: s.Config, Version: "cluster", Logger: log,
		Wall: func() time.Time { return time.Now().Add(time.Duration(clockAhead.Load())) },
		OpenCapture: func(o capture.Options) (*capture.Capture, error) {
			if !s.Hooks {
				o.Attach = capture.AttachNone
			}
			c, err := capture.Open(o)
			if err != nil {
				return nil, err
			}
			if err := announce(c); err != nil {
				return nil, errors.Join(err, c.Close())
			}
			return c, nil
		},
	})
	if err != nil {
		return err
	}
	return d.Run(context.Background())
}

func announce(c *capture.Capture) error {
	ids := make(map[string]uint32)
	for name, m := range c.Maps() {
		info, err := m.Info()
		if err != nil {
			return fmt.Errorf("get the id of map %s: %w", name, err)
		}
		id, _ := info.ID()
		ids[name] = uint32(id)
	}
	if err := json.NewEncoder(os.Stdout).Encode(ids); err != nil {
		return fmt.Errorf("announce the capture: %w", err)
	}
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the data plane: %w", err)
	}
	go func() {
		for { // lines are new values of clockAhead
			line, err := in.ReadString('\n')
			if err != nil {
				os.Exit(1) // the node has exited; its syncd exits with it
			}
			ahead, _ := strconv.ParseInt(strings.TrimSpace(line), 10, 64) // 0 is a clock, too
			clockAhead.Store(ahead)
		}
	}()
	return nil
}
