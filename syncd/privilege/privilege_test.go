package privilege_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"mapsync/internal/seccomp"
	"mapsync/syncd/privilege"

	"golang.org/x/sys/unix"
)

// childVariable is set in the processes that try bpf(2). Its value is filterCalls or tryCalls.
const (
	childVariable = "PRIVILEGE_TEST_CHILD"
	filterCalls   = "filter"
	tryCalls      = "try"
)

func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case filterCalls:
		fmt.Println(filterAndTry())
	case tryCalls:
		fmt.Println(privilege.AllowBPF())
	default:
		os.Exit(m.Run())
	}
}

// filterAndTry denies bpf(2) to this process with EPERM, as profiles of containers do, and replaces it by one that tries the call.
func filterAndTry() error {
	if err := seccomp.Deny(unix.SYS_BPF); err != nil {
		return err
	}
	self, err := os.Executable()
	if err == nil {
		err = os.Setenv(childVariable, tryCalls)
	}
	if err != nil {
		return err
	}
	return unix.Exec(self, os.Args, os.Environ())
}

// try runs a child, perhaps by another program, and returns its output.
func try(t *testing.T, child string, by ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	words := append(by, self)
	cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
	cmd.Env = append(os.Environ(), childVariable+"="+child)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("run %q: got error %v, want none\n%s", words, err, out)
	}
	return string(out)
}

// TestCausesOfRefusedCalls: the error has the cause for which the kernel refuses bpf(2) to a process, and no other one.
func TestCausesOfRefusedCalls(t *testing.T) {
	if err := privilege.AllowBPF(); err != nil {
		t.Fatalf("bpf(2) of this process: got error %v, want none (needs root)", err)
	}
	causes := []error{privilege.ErrSeccomp, privilege.ErrCapability, privilege.ErrUserNamespace, privilege.ErrLockedMemory, privilege.ErrModule}
	for name, c := range map[string]struct {
		child string
		by    []string
		want  error
	}{
		"no limit":                  {tryCalls, nil, nil},
		"CAP_BPF only":              {tryCalls, []string{"setpriv", "--bounding-set=-all,+bpf"}, nil},
		"filter":                    {filterCalls, nil, privilege.ErrSeccomp},
		"filter and the unit's set": {filterCalls, []string{"setpriv", "--bounding-set=-sys_resource"}, privilege.ErrSeccomp},
		"no capability":             {tryCalls, []string{"setpriv", "--bounding-set=-bpf,-sys_admin"}, privilege.ErrCapability},
		"user namespace":            {tryCalls, []string{"unshare", "--user", "--map-root-user"}, privilege.ErrUserNamespace},
	} {
		out := try(t, c.child, c.by...)
		for _, cause := range causes {
			if strings.Contains(out, cause.Error()) != errors.Is(cause, c.want) {
				t.Errorf("%s: got %q, want the cause %v only", name, out, c.want)
			}
		}
		if c.want == nil && strings.TrimSpace(out) != "<nil>" {
			t.Errorf("%s: got %q, want no error", name, out)
		}
	}
}
