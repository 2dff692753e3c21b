package docs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mapsync/internal/handbook"
	"mapsync/internal/netns"
)

// stepTimeout is the maximum duration of a step, in which a slow machine compiles syncd.
const stepTimeout = 5 * time.Minute

// The commands of the quick start work in order, their outputs are those on the page, and nothing is
// left behind. The kernel may offer no hooks.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	dir := cloneProject(t)
	shell := startShell(t, dir)
	if ran := runSteps(t, shell, ""); ran < 20 {
		t.Errorf("%d steps were found, want at least 20", ran)
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("mounts after the clean-up: error %v\n%s", err, mounts)
	}
	if running, err := shell.Running(); err != nil || len(running) > 0 {
		t.Errorf("processes after the clean-up: %q, error %v", running, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "quickstart")); !os.IsNotExist(err) {
		t.Errorf("directory after the clean-up: %v, want none", err)
	}
}

// runSteps executes the steps of the quick start before the section with the given anchor, or all, and
// returns their number.
func runSteps(t *testing.T, shell *handbook.Shell, end string) (ran int) {
	t.Helper()
	page, err := handbook.Read("quickstart.md")
	if err != nil {
		t.Fatal(err)
	}
	steps, err := page.Steps()
	if err != nil {
		t.Fatal(err)
	}
	if end != "" {
		n := slices.IndexFunc(steps, func(s handbook.Step) bool { return s.Section == end })
		if n < 0 {
			t.Fatalf("the quick start has no section %s with commands", end)
		}
		steps = steps[:n]
	}
	for _, step := range steps {
		begun := time.Now()
		runStep(t, shell, step)
		t.Logf("line %d, %s: %v", step.Line, step.Section, time.Since(begun).Round(time.Millisecond))
	}
	return len(steps)
}

func runStep(t *testing.T, shell *handbook.Shell, step handbook.Step) {
	t.Helper()
	limit := stepTimeout
	if step.Retry {
		limit = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := shell.RunStep(ctx, step); err != nil {
		logs, _ := filepath.Glob(filepath.Join(shell.Dir(), "quickstart", "*.log"))
		for _, log := range logs {
			text, _ := os.ReadFile(log)
			t.Logf("%s:\n%s", filepath.Base(log), text)
		}
		t.Fatalf("quickstart.md, %v", err)
	}
}

// cloneProject returns a new directory with the files of this project, without build output.
func cloneProject(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mapsync")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Makefile", "go.mod", "go.sum", "bpf", "docs", "peers", "printable", "proto", "scripts", "syncd"} {
		if out, err := exec.Command("cp", "-a", filepath.Join("..", name), dir).CombinedOutput(); err != nil {
			t.Fatalf("copy %s: got error %v, want none\n%s", name, err, out)
		}
	}
	return dir
}

// needTool skips the test if a program is missing.
func needTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is missing: scripts/install-deps test", name)
	}
}

// startShell starts a shell in the directory of cloneProject, with a network namespace of its own. It
// skips the test if openssl is missing.
func startShell(t *testing.T, dir string) *handbook.Shell {
	t.Helper()
	needTool(t, "openssl")
	ns, err := netns.New("page")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Steps after a failed one do not run, so that the file system may still be mounted.
		err := syscall.Unmount(filepath.Join(dir, "quickstart", "bpf"), syscall.MNT_DETACH)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
	shell, err := handbook.StartShell(t.TempDir(), func(cmd *exec.Cmd) {
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "TZ=UTC", "LC_ALL=C.UTF-8", "CGO_ENABLED=0")
	}, ns.Start)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shell.Close(); err != nil {
			t.Error(err)
		}
	})
	return shell
}
