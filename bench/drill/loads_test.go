package drill

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"mapsync/bench/lb/bpf"
)

// TestTcpkali uses tcpkali, which opens a new session for a lost one.
func TestTcpkali(t *testing.T) {
	needPrograms(t, "tcpkali")
	testLoad(t, Options{Sessions: 100, Load: LoadTcpkali, StallTimeout: 15 * time.Second, SkipControl: true})
}

// TestNetperf checks that sessions of netperf keep both of their connections, or lose them.
func TestNetperf(t *testing.T) {
	needPrograms(t, "netperf", "netserver")
	testLoad(t, Options{Sessions: 20, Load: LoadNetperf, StallTimeout: 10 * time.Second, Hold: time.Second, SkipControl: true})
}

// testLoad checks that all sessions survive with the complete state on the peer, and none without it.
func testLoad(t *testing.T, o Options) {
	for _, kept := range []bool{true, false} {
		o.BeforeCut = func(active, standby string) error {
			return copyMap(active, standby, func(*bpf.LBCtKey, *bpf.LBCtValue) bool { return kept })
		}
		result := perform(t, o)
		if r := result.Real; (r.Survived == o.Sessions) != kept || (r.Survived == 0) == kept {
			t.Errorf("run with state kept %v: got %+v, want all or none survived", kept, r)
		}
	}
}

// needPrograms makes sure that the programs are on the path. In place of one that is not installed, another program takes
// its arguments.
func needPrograms(t *testing.T, names ...string) {
	dir := t.TempDir()
	for _, name := range names {
		_, err := exec.LookPath(name)
		if err == nil {
			continue
		}
		if os.Getenv("MAPSYNC_KERNEL") != "" {
			t.Fatalf("%s in the virtual machine: %v", name, err)
		}
		build := exec.Command("go", "build", "-o", filepath.Join(dir, name), "./cmd/load-standin")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build a program in place of %s: %v: %s", name, err, out)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
