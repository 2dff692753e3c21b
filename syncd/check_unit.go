package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// unitDir is the directory of units that end with the next boot.
const unitDir = "/run/systemd/system"

// unitOverride replaces what a unit runs, and what follows its end. The other lines of the unit stay: its user, capabilities,
// limits and sandbox. The runtime directory stays, because a running syncd may use it.
const unitOverride = `
[Unit]
OnFailure=
OnSuccess=
FailureAction=none
SuccessAction=none
StartLimitAction=none
[Service]
Type=oneshot
Restart=no
WatchdogSec=0
TimeoutStartSec=5min
RuntimeDirectoryPreserve=yes
ExecCondition=
ExecStartPre=
ExecStart=
ExecStart=%s
ExecStartPost=
ExecReload=
ExecStop=
ExecStopPost=
StandardOutput=truncate:%s
StandardError=truncate:%s
`

// checkAsUnit runs this command in a copy of a systemd unit, with all its drop-ins, and prints its output. The error is that of
// the command, or the reason why systemd could not run it.
func checkAsUnit(cmd *cobra.Command, unit string) (err error) {
	text, err := systemctl("cat", unit)
	if err != nil {
		return fmt.Errorf("read the unit %s: %w; install it, or set --unit", unit, err)
	}
	dir, err := os.MkdirTemp("/run", "syncd-check-")
	if err != nil {
		return fmt.Errorf("prepare a check as %s (needs root): %w", unit, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	words, err := unitCommand(cmd)
	if err != nil {
		return err
	}
	out, errs := filepath.Join(dir, "out"), filepath.Join(dir, "errors")
	name := filepath.Base(dir) + ".service"
	override := fmt.Sprintf(unitOverride, words, out, errs)
	if err := os.WriteFile(filepath.Join(unitDir, name), []byte(text+override), 0o644); err != nil { //nolint:gosec // systemd warns about other modes
		return fmt.Errorf("prepare a check as %s: %w", unit, err)
	}
	defer func() {
		_, _ = systemctl("reset-failed", name) // fails unless the check has failed
		removed := os.Remove(filepath.Join(unitDir, name))
		_, reloaded := systemctl("daemon-reload")
		err = errors.Join(err, removed, reloaded)
	}()
	if _, err := systemctl("daemon-reload"); err != nil {
		return err
	}
	_, started := systemctl("start", name)
	if err := errors.Join(copyFile(cmd.OutOrStdout(), out), copyFile(cmd.ErrOrStderr(), errs)); err != nil {
		return err
	}
	if started == nil {
		return nil
	}
	return unitFailure(name)
}

// unitFailure returns the error of a command that a unit ran, or the reason why systemd could not run it.
func unitFailure(name string) error {
	const exited = "exit-code"
	result, err := systemctl("show", "-P", "Result", name)
	if err != nil {
		return err
	}
	status, err := systemctl("show", "-P", "ExecMainStatus", name)
	if err != nil {
		return err
	}
	switch {
	case result == exited && status == fmt.Sprint(exitFailed):
		return errReported
	case result == exited && status == fmt.Sprint(exitUsage):
		return errSettings
	}
	return fmt.Errorf("systemd cannot run the check: result %s, status %s; its reason: journalctl -u %s", result, status, name)
}

// unitCommand returns the command line of cmd without the flags about the unit, as a unit has it.
func unitCommand(cmd *cobra.Command) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	words := []string{unitWord(self), cmd.Name()}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			switch f.Name {
			case "as-unit", "unit":
				continue
			case "config": // the unit has another working directory
				var absErr error
				value, absErr = filepath.Abs(value)
				err = errors.Join(err, absErr)
			}
			words = append(words, unitWord("--"+f.Name+"="+value))
		}
	})
	return strings.Join(words, " "), err
}

// unitWord quotes a word for a unit: without quotes, variables and specifiers that systemd would replace.
func unitWord(word string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "%", "%%", "$", "$$").Replace(word) + `"`
}

// systemctl returns the output of systemctl, without the last line break.
func systemctl(args ...string) (string, error) {
	out, err := exec.Command("systemctl", append([]string{"--no-pager"}, args...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		err = errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("systemctl %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// copyFile copies a file to out. systemd has not made it if it could not run the command.
func copyFile(out io.Writer, path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}
