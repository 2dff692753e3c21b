package drill

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// workDir is the directory for the drill's files and pins. It contains a bpffs mount.
type workDir struct {
	dir string
	bpf string
}

func newWorkDir() (*workDir, error) {
	dir, err := os.MkdirTemp("", "mapsync-drill-")
	if err != nil {
		return nil, fmt.Errorf("make work directory: %w", err)
	}
	w := &workDir{dir: dir, bpf: filepath.Join(dir, "bpf")}
	if err := os.Mkdir(w.bpf, 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("make work directory: %w", err), os.Remove(dir))
	}
	if err := unix.Mount("bpffs", w.bpf, "bpf", 0, "mode=0700"); err != nil {
		return nil, errors.Join(fmt.Errorf("mount bpffs: %w", err), os.RemoveAll(dir))
	}
	return w, nil
}

// pins creates a directory for the pins of one load balancer in one run.
func (w *workDir) pins(run, node string) (string, error) {
	dir := filepath.Join(w.bpf, run+"-"+node)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("make pin directory: %w", err)
	}
	return dir, nil
}

// files creates a directory for the files of one node in one run.
func (w *workDir) files(run, node string) (string, error) {
	dir := filepath.Join(w.dir, run+"-"+node)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("make file directory: %w", err)
	}
	return dir, nil
}

// remove removes the pins, and with them the maps, and then all files.
func (w *workDir) remove() error {
	if err := unix.Unmount(w.bpf, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount bpffs: %w", err)
	}
	if err := os.RemoveAll(w.dir); err != nil {
		return fmt.Errorf("remove work directory: %w", err)
	}
	return nil
}
