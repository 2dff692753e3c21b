package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mapsync/internal/vm"
)

func TestGoTestArguments(t *testing.T) {
	t.Chdir(t.TempDir())
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(cwd, "cache", "fuzz")
	opts, err := parse([]string{
		"-kernel", "6.12", "-modules", "a,b", "-env", "K=V", "-file", "x:/y", "-out", "/r:s", "/b/pkg.test",
		"-test.testlogfile=/b/testlog.txt", "-test.timeout=1h", "-test.coverprofile=/b/cover.out",
		"-test.cpuprofile=cpu.out", "-test.fuzz=FuzzX", "-test.fuzzcachedir=" + cache, "-test.v=true",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := vm.Config{
		Args: []string{
			"/b/pkg.test", "-test.timeout=1h", "-test.coverprofile=/b/cover.out", "-test.cpuprofile=cpu.out",
			"-test.fuzz=FuzzX", "-test.fuzzcachedir=" + cache, "-test.v=true",
		},
		Env:   []string{"K=V"},
		Files: []vm.File{{Host: filepath.Join(cwd, "x"), Guest: "/y"}, {Host: cache, Guest: cache}},
		Outs: []vm.Out{
			{Guest: "/r", Host: filepath.Join(cwd, "s")},
			{Guest: "/b/cover.out", Host: "/b/cover.out", Optional: true},
			{Guest: filepath.Join(cwd, "cpu.out"), Host: filepath.Join(cwd, "cpu.out"), Optional: true},
			{Guest: filepath.Join(cwd, "testdata"), Host: filepath.Join(cwd, "testdata"), Optional: true},
			{Guest: cache, Host: cache, Optional: true},
		},
		Modules: []string{"a", "b"},
		Memory:  "2G", CPUs: 2, Accel: "tcg", Timeout: time.Hour + 2*time.Minute,
	}
	if diff := cmp.Diff(want, opts.config); diff != "" {
		t.Errorf("settings of the machine (-want +got):\n%s", diff)
	}
	if opts.kernel != "6.12" {
		t.Errorf("kernel: got %s, want 6.12", opts.kernel)
	}
}

func TestExplicitTimeoutIsKept(t *testing.T) {
	opts, err := parse([]string{"-timeout", "5m", "/b/pkg.test", "-test.timeout=1h"})
	if err != nil || opts.config.Timeout != 5*time.Minute {
		t.Errorf("explicit timeout: got options %+v, error %v, want a timeout of 5 min and nil", opts, err)
	}
	if _, err := parse([]string{"/b/pkg.test", "-test.timeout=soon"}); err == nil {
		t.Error("invalid test timeout: got nil, want an error")
	}
}
