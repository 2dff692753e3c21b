package daemon_test

import (
	"fmt"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/problem"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TestFormerMapIsUsed: a program and a process keep the former map after its pin was replaced. The status, the metric and the log
// name them until they have ended. A map that nothing uses is not shown.
func TestFormerMapIsUsed(t *testing.T) {
	pin := pinDir(t) + "/ct"
	former := pinned(t, pin, 8, 16, 100)
	n := newNode(t, 1, "ct="+pin)
	n.config.Join = nil
	n.start()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "old_lb", Type: ebpf.SocketFilter, License: "MIT",
		Instructions: asm.Instructions{asm.LoadMapPtr(asm.R1, former.FD()), asm.LoadImm(asm.R0, 0, asm.DWord), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	users := func() []string { return n.status().Maps[0].FormerUsers }
	poll.Eventually(t, "the map is attached", func() bool { return n.status().Maps[0].ID == idOf(t, former) })
	t.Run("used", func(t *testing.T) {
		startControlPlane(t, pin).do("update", 0, 1, 1) // it has opened the map, and keeps it until the end of this test
		current := pinned(t, pin, 8, 16, 100)
		defer current.Close()
		poll.Eventually(t, "the status names the program and the process", func() bool {
			all := strings.Join(users(), "\n")
			suffix := fmt.Sprintf("uses map id %d", idOf(t, former))
			return strings.Count(all, suffix) >= 2 && strings.Contains(all, "program old_lb (SocketFilter, id ") && strings.Contains(all, "process ")
		}, func() any { return users() })
	})
	poll.Eventually(t, "the status names the program only", func() bool {
		all := strings.Join(users(), "\n")
		return strings.Contains(all, "old_lb") && !strings.Contains(all, "process ")
	}, func() any { return users() })
	n.shows("former-map-used", problem.Critical, "old_lb")
	poll.Eventually(t, "the log has the use", func() bool { return n.log.contains("a former map is still used") })
	if err := program.Close(); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the status names no users", func() bool { return len(users()) == 0 }, func() any { return users() })
	n.ends("former-map-used")
	poll.Eventually(t, "the log has the end of the use", func() bool { return n.log.contains("former maps are not used any more") })
}
