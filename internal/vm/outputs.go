package vm

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// outputs unpacks the guest's tar streams while they arrive.
type outputs struct {
	outs    []Out
	streams []*io.PipeWriter
	errs    []error
	group   sync.WaitGroup
}

func newOutputs(outs []Out) *outputs {
	return &outputs{outs: outs, streams: make([]*io.PipeWriter, len(outs)), errs: make([]error, len(outs))}
}

// write processes the payload of one file frame.
func (o *outputs) write(payload []byte) error {
	if len(payload) == 0 || int(payload[0]) >= len(o.outs) {
		return errors.New("take guest's file: unknown index")
	}
	i := int(payload[0])
	if o.streams[i] == nil {
		r, w := io.Pipe()
		o.streams[i] = w
		o.group.Go(func() {
			o.errs[i] = untar(r, o.outs[i].Host)
			_, _ = io.Copy(io.Discard, r) // drain the stream, because the guest continues after an error
		})
	}
	_, err := o.streams[i].Write(payload[1:])
	return err
}

// finish waits until all files are written and returns an error for missing files.
func (o *outputs) finish() error {
	o.close(io.EOF)
	for i, out := range o.outs {
		if o.streams[i] == nil && !out.Optional {
			o.errs[i] = errors.New("not there")
		}
		if o.errs[i] != nil {
			o.errs[i] = fmt.Errorf("copy %s out of the guest to %s: %w", out.Guest, out.Host, o.errs[i])
		}
	}
	return errors.Join(o.errs...)
}

// abort ends the unpacking of incomplete streams.
func (o *outputs) abort() { o.close(io.ErrUnexpectedEOF) }

func (o *outputs) close(err error) {
	for _, w := range o.streams {
		if w != nil {
			_ = w.CloseWithError(err)
		}
	}
	o.group.Wait()
}

// untar unpacks a stream to a path. The entry "." is the path itself. Other entries cannot escape it.
func untar(r io.Reader, to string) error {
	var root *os.Root
	defer func() {
		if root != nil {
			_ = root.Close()
		}
	}()
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		mode := os.FileMode(h.Mode).Perm()
		name := filepath.Clean(h.Name)
		switch {
		case name == "." && h.Typeflag == tar.TypeDir:
			if err = os.MkdirAll(to, mode|0o700); err == nil {
				root, err = os.OpenRoot(to)
			}
		case name == ".":
			err = writePlain(to, mode, tr)
		case root == nil:
			err = errors.New("entry before its directory")
		case h.Typeflag == tar.TypeDir:
			err = root.MkdirAll(name, mode|0o700)
		default:
			err = writeInside(root, name, mode, tr)
		}
		if err != nil {
			return err
		}
	}
}

func writePlain(path string, mode os.FileMode, r io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

func writeInside(root *os.Root, name string, mode os.FileMode, r io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
