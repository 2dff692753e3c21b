package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
)

// Entries calls fn for each record of a map that matches q, until fn returns an error. With
// q.Watch it continues until ctx ends, and then returns nil.
func (c *Client) Entries(ctx context.Context, name string, q EntryQuery, fn func(*Entry) error) error {
	q.Text = false
	body, err := c.entries(ctx, name, &q)
	if err != nil {
		return err
	}
	defer body.Close()
	decoder := json.NewDecoder(body)
	for {
		var e Entry
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) || (q.Watch && ctx.Err() != nil) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read entries: %w", err)
		}
		if err := fn(&e); err != nil {
			return err
		}
	}
}

func (c *Client) entries(ctx context.Context, name string, q *EntryQuery) (io.ReadCloser, error) {
	body, err := c.do(ctx, http.MethodGet, q.path(name))
	if err == nil && q.Opened != nil {
		q.Opened()
	}
	return body, err
}

// WriteEntries writes each record of a map that matches q to w as one line: the JSON of an Entry, or text with q.Text. It
// writes complete lines, when they arrive. With q.Watch it continues until ctx ends, and then returns nil.
func (c *Client) WriteEntries(ctx context.Context, name string, q EntryQuery, w io.Writer) error {
	body, err := c.entries(ctx, name, &q)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := copyLines(w, body); err != nil && (!q.Watch || ctx.Err() == nil) {
		return err
	}
	return nil
}

// copyLines writes the complete lines of r that are not empty to w, as they arrive.
func copyLines(w io.Writer, r io.Reader) error {
	lines := make([]byte, 0, 2*listBuffer) // begins with a line
	for {
		if len(lines) == cap(lines) {
			lines = slices.Grow(lines, len(lines))
		}
		n, err := r.Read(lines[len(lines):cap(lines)])
		lines = lines[:len(lines)+n]
		// Only what has just arrived can end a line.
		if end := bytes.LastIndexByte(lines[len(lines)-n:], '\n') + 1; end > 0 {
			end += len(lines) - n
			if kept := withoutEmptyLines(lines[:end]); len(kept) > 0 {
				if _, err := w.Write(kept); err != nil {
					return fmt.Errorf("write entries: %w", err)
				}
			}
			lines = append(lines[:0], lines[end:]...)
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read entries: %w", err)
		}
	}
}

// withoutEmptyLines removes the empty lines from complete lines, in place.
func withoutEmptyLines(lines []byte) []byte {
	kept := lines[:0]
	for rest := lines; len(rest) > 0; {
		if rest[0] == '\n' {
			rest = rest[1:]
			continue
		}
		end := len(rest)
		if i := bytes.Index(rest, []byte("\n\n")); i >= 0 {
			end = i + 1
		}
		kept = append(kept, rest[:end]...)
		rest = rest[end:]
	}
	return kept
}
