package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"syscall"
	"time"

	"github.com/goccy/go-yaml"

	"mapsync/syncd/config"
)

// program is a syncd program that runs in place of a child.
type program struct {
	path string
	cmd  *exec.Cmd // nil: it does not run
	text Tail      // end of its standard error
}

// stopLimit is the longest time that a program may take to exit.
const stopLimit = 20 * time.Second

// StartProgram starts the syncd program of that path, such as that of another release, with the
// settings and the state directory of s. It is used in place of Start. It does not wait until the
// program is ready.
func (s *Syncd) StartProgram(path string) error {
	if err := s.secure(); err != nil {
		return err
	}
	text, err := changedSettings(&s.Config)
	if err != nil {
		return err
	}
	file := filepath.Join(s.dir, "syncd.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	cmd := exec.Command(path, "run", "--config", file)
	cmd.Stderr = &s.program.text
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	s.program.path, s.program.cmd = path, cmd
	return nil
}

// StopProgram ends the program of StartProgram with SIGTERM and waits for its exit. It does nothing
// if the program does not run. The state directory stays until Close.
func (s *Syncd) StopProgram() error {
	cmd := s.program.cmd
	if cmd == nil {
		return nil
	}
	s.program.cmd = nil
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w\n%s", s.program.path, err, s.program.text.String())
	}
	timer := time.AfterFunc(stopLimit, func() { _ = cmd.Process.Kill() }) // it fails only if the process has ended
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("stop %s: %w\n%s", s.program.path, err, s.program.text.String())
	}
	return nil
}

// ProgramLog returns the end of the standard error of the program of StartProgram.
func (s *Syncd) ProgramLog() string { return s.program.text.String() }

// Command runs a subcommand of the program of StartProgram with the daemon's control socket. It
// returns its standard output. An exit status other than 0 is an error.
func (s *Syncd) Command(ctx context.Context, args ...string) ([]byte, error) {
	return s.program.command(ctx, append(args, "--control-socket", s.Config.ControlSocket)...)
}

// command runs the program with arguments and returns its standard output.
func (p *program) command(ctx context.Context, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("run syncd %q: %w\n%s%s", args, err, out, stderr.Bytes())
	}
	return out, nil
}

// changedSettings returns the settings that differ from their defaults as a configuration file. The
// file has no setting that another release lacks, unless the caller has changed it.
func changedSettings(c *config.Config) ([]byte, error) {
	def := config.Default()
	all, defaults := reflect.ValueOf(*c), reflect.ValueOf(def)
	changed := make(map[string]any)
	for i := range all.NumField() {
		if key := all.Type().Field(i).Tag.Get("yaml"); !reflect.DeepEqual(all.Field(i).Interface(), defaults.Field(i).Interface()) {
			changed[key] = all.Field(i).Interface()
		}
	}
	text, err := yaml.Marshal(changed)
	if err != nil {
		return nil, fmt.Errorf("encode settings: %w", err)
	}
	return text, nil
}
