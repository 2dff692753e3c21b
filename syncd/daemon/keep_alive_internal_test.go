package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serveSocket serves requests on a control socket, and returns a client that waits for silent handlers for a time.
func serveSocket(t *testing.T, timeout time.Duration, handler http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	c := NewClient(socket)
	c.Timeout = timeout
	return c
}

// The client waits for a request that is kept alive, before the answer and within it, and not for a silent one.
func TestKeepAlive(t *testing.T) {
	const timeout = 3 * keepAliveInterval
	work := func() { <-time.After(timeout + keepAliveInterval) } // longer than the client waits
	for name, test := range map[string]struct {
		handle func(w http.ResponseWriter)
		alive  bool
	}{
		"interim": {func(w http.ResponseWriter) { keepAlive(w, interim, work); fmt.Fprintln(w, `{}`) }, true},
		"lines":   {func(w http.ResponseWriter) { keepAlive(w, emptyLine, work); fmt.Fprintln(w, `{}`) }, true},
		"silent":  {func(w http.ResponseWriter) { work(); fmt.Fprintln(w, `{}`) }, false},
		"silent within the answer": {func(w http.ResponseWriter) {
			fmt.Fprintln(w, `{}`)
			_ = http.NewResponseController(w).Flush()
			work()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := serveSocket(t, timeout, func(w http.ResponseWriter, _ *http.Request) { test.handle(w) })
			err := lines(t.Context(), c, http.MethodPut, "/", func(*struct{}) error { return nil })
			switch {
			case test.alive && err != nil:
				t.Errorf("request that is kept alive: got error %v, want none", err)
			case !test.alive && (!errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "still executes")):
				t.Errorf("silent request: got error %v, want ErrNotRunning and that the request may be executed", err)
			}
		})
	}
}

// Work that makes no progress is kept alive for a limited time only.
func TestKeepAliveIsLimited(t *testing.T) {
	if maxKeepAlive < compareTimeout {
		t.Errorf("requests are kept alive for %s, want at least that of a comparison, %s", maxKeepAlive, compareTimeout)
	}
	if maxKeepAlive > 5*time.Minute {
		t.Errorf("requests are kept alive for %s, want at most 5 min", maxKeepAlive)
	}
}

// An interrupted request, one without permission and one without a daemon have different errors.
func TestReasonsWithoutAnswer(t *testing.T) {
	c := serveSocket(t, 0, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := c.Ready(ctx); errors.Is(err, ErrNotRunning) || !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted request: got error %v, want context.Canceled alone", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Ready(ctx); !errors.Is(err, ErrNotRunning) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "systemctl restart syncd") {
		t.Errorf("request after its deadline: got error %v, want ErrNotRunning and the remedy", err)
	}
	if _, err := NewClient(filepath.Join(t.TempDir(), "none")).Ready(t.Context()); !errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "systemctl start syncd") {
		t.Errorf("request without a daemon: got error %v, want ErrNotRunning and the remedy", err)
	}
}

// parts returns each part on its own.
type parts []string

func (p *parts) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	if (*p)[0] = (*p)[0][n:]; (*p)[0] == "" {
		*p = (*p)[1:]
	}
	return n, nil
}

// The client writes complete lines only, as they arrive, and no empty ones. A line may be longer than its buffer.
func TestWriteEntriesWritesLines(t *testing.T) {
	long := strings.Repeat("x", 5*listBuffer) + "\n"
	for name, test := range map[string]struct {
		parts []string
		want  string
	}{
		"none":          {nil, ""},
		"lines":         {[]string{"a\nb\n", "c\n"}, "a\nb\nc\n"},
		"split lines":   {[]string{"a", "a\nb", "", "b\n"}, "aa\nbb\n"},
		"empty lines":   {[]string{"\n", "\na\n", "\n\n", "b\n\n\nc\n", "\n"}, "a\nb\nc\n"},
		"incomplete":    {[]string{"a\n", "b"}, "a\n"},
		"long line":     {[]string{"a\n" + long, "b\n"}, "a\n" + long + "b\n"},
		"long, split":   {[]string{long[:len(long)/2], long[len(long)/2:] + "\n"}, long},
		"only new line": {[]string{"\n"}, ""},
	} {
		var out bytes.Buffer
		p := parts(test.parts)
		if err := copyLines(&out, &p); err != nil || out.String() != test.want {
			t.Errorf("%s: got %d bytes, error %v, want %d bytes", name, out.Len(), err, len(test.want))
		}
	}
}
