package printable

import (
	"io"
	"sync"
	"unicode/utf8"
)

// Writer writes texts and JSON with an escape in place of each character that is not printable, except line feeds and
// tabs. It is the last guard: a text with line feeds can still look like several lines. It is safe for concurrent use.
type Writer struct {
	to io.Writer
	// mu guards the fields below, and writes to to.
	mu sync.Mutex
	// cut is the beginning of a character whose other bytes are still to be written.
	cut []byte
	// out is scratch space of Write.
	out []byte
}

// NewWriter returns a Writer that writes to to.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Unwrap returns the writer below, which accepts control characters.
func (w *Writer) Unwrap() io.Writer { return w.to }

// Write implements io.Writer. It keeps the beginning of a character at the end of p until the next call.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := append(w.cut, p...)
	w.out = w.out[:0]
	for utf8.FullRune(left) {
		r, size := utf8.DecodeRune(left)
		left = left[size:]
		if r == '\n' || r == '\t' {
			w.out = append(w.out, byte(r))
		} else {
			w.out = AppendRune(w.out, r)
		}
	}
	w.cut = append([]byte(nil), left...)
	if _, err := w.to.Write(w.out); err != nil {
		return 0, err
	}
	return len(p), nil
}
