package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// stub takes the place of each program that the script starts. As the compiler, it creates a program.
const stub = `#!/bin/sh
while [ $# -gt 0 ]; do
	[ "$1" != -o ] || cp "$0" "bin/${2##*/}"
	shift
done
`

// TestReportPrintsItsTime: the last line has the elapsed time, and with QUICK=1 its limit.
func TestReportPrintsItsTime(t *testing.T) {
	root, programs := t.TempDir(), t.TempDir()
	script, err := os.ReadFile("report")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"bin", "scripts"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{
		filepath.Join(root, "scripts", "report"):       string(script),
		filepath.Join(root, "scripts", "install-deps"): stub,
		filepath.Join(root, "scripts", "drill"):        stub,
	}
	for _, name := range []string{"go", "make", "netperf", "netserver", "tcpkali"} {
		files[filepath.Join(programs, name)] = stub
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for quick, want := range map[string]string{"": `\nreport: \d+ s\n$`, "1": `\nreport: \d+ s, limit 600 s\n$`} {
		cmd := exec.Command(filepath.Join(root, "scripts", "report"))
		cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "QUICK="+quick, "KERNEL=6.1")
		out, err := cmd.CombinedOutput()
		if err != nil || !regexp.MustCompile(want).Match(out) {
			t.Errorf("QUICK=%s: got output %s, error %v, want an end like %s", quick, out, err, want)
		}
	}
}
