package drill

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// workplace is where the drill keeps its files and pins: a directory of its
// own, with a bpffs of its own in it.
type workplace struct {
	dir string
	bpf string
}

func newWorkplace() (*workplace, error) {
	dir, err := os.MkdirTemp("", "mapsync-drill-")
	if err != nil {
		return nil, fmt.Errorf("make work directory: %w", err)
	}
	w := &workplace{dir: dir, bpf: filepath.Join(dir, "bpf")}
	if err := os.Mkdir(w.bpf, 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("make work directory: %w", err), os.Remove(dir))
	}
	if err := unix.Mount("bpffs", w.bpf, "bpf", 0, "mode=0700"); err != nil {
		return nil, errors.Join(fmt.Errorf("mount bpffs: %w", err), os.RemoveAll(dir))
	}
	return w, nil
}

// pins makes a directory for the pins of one load balancer in one run.
func (w *workplace) pins(run, node string) (string, error) {
	dir := filepath.Join(w.bpf, run+"-"+node)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("make pin directory: %w", err)
	}
	return dir, nil
}

// files makes a directory for the files of one node in one run.
func (w *workplace) files(run, node string) (string, error) {
	dir := filepath.Join(w.dir, run+"-"+node)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("make file directory: %w", err)
	}
	return dir, nil
}

// remove takes the pins, and with them the maps, away, and then all files.
func (w *workplace) remove() error {
	if err := unix.Unmount(w.bpf, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount bpffs: %w", err)
	}
	if err := os.RemoveAll(w.dir); err != nil {
		return fmt.Errorf("remove work directory: %w", err)
	}
	return nil
}
