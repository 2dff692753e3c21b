package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mapsync/internal/vm"
)

// profiles are the flags of a test binary that contain the name of an output file.
var profiles = map[string]bool{
	"coverprofile": true, "cpuprofile": true, "memprofile": true,
	"blockprofile": true, "mutexprofile": true, "trace": true,
}

// testFlags holds the file and time settings in the arguments of a test binary.
type testFlags struct {
	profiles  []string
	outputDir string
	coverDir  string
	fuzzCache string
	fuzz      bool
	timeout   time.Duration
}

// forGoTest adapts cfg to a test binary under go test -exec. Files that the binary writes for the go
// command are copied to the same path on the host. The machine's time limit exceeds the test's own
// time limit.
func forGoTest(cfg *vm.Config, timeoutSet bool) error {
	args, flags, err := parseTestFlags(cfg.Args)
	if err != nil {
		return err
	}
	cfg.Args = args
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find working directory: %w", err)
	}
	out := func(path, base string) {
		if !filepath.IsAbs(path) {
			path = filepath.Join(base, path)
		}
		cfg.Outs = append(cfg.Outs, vm.Out{Guest: path, Host: path, Optional: true})
	}
	base := cwd
	if flags.outputDir != "" {
		base = flags.outputDir
	}
	for _, path := range flags.profiles {
		out(path, base)
	}
	if flags.coverDir != "" {
		out(flags.coverDir, cwd)
		cfg.Files = append(cfg.Files, vm.File{Host: flags.coverDir, Guest: flags.coverDir})
	}
	if flags.fuzz { // the fuzzer writes its findings to testdata
		out("testdata", cwd)
	}
	if flags.fuzzCache != "" {
		if err := os.MkdirAll(flags.fuzzCache, 0o755); err != nil {
			return fmt.Errorf("create fuzz cache: %w", err)
		}
		out(flags.fuzzCache, cwd)
		cfg.Files = append(cfg.Files, vm.File{Host: flags.fuzzCache, Guest: flags.fuzzCache})
	}
	if margin := flags.timeout + 2*time.Minute; flags.timeout > 0 && !timeoutSet {
		cfg.Timeout = max(cfg.Timeout, margin)
	}
	return nil
}

// parseTestFlags returns the arguments without -test.testlogfile. That file lists the files that the
// go command checks before it uses a cached result. Without the list, the go command does not cache
// the result. It could not check the kernel, which is not among the test's files.
func parseTestFlags(args []string) (kept []string, f testFlags, err error) {
	for _, arg := range args {
		flag, ok := strings.CutPrefix(arg, "-test.")
		name, value, _ := strings.Cut(flag, "=")
		switch {
		case !ok:
		case name == "testlogfile":
			continue
		case profiles[name]:
			f.profiles = append(f.profiles, value)
		case name == "outputdir":
			f.outputDir = value
		case name == "gocoverdir":
			f.coverDir = value
		case name == "fuzzcachedir":
			f.fuzzCache = value
		case name == "fuzz":
			f.fuzz = true
		case name == "timeout":
			if f.timeout, err = time.ParseDuration(value); err != nil {
				return nil, f, fmt.Errorf("parse %s: %w", arg, err)
			}
		}
		kept = append(kept, arg)
	}
	return kept, f, nil
}
