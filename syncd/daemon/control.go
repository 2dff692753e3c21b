package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func (a *admin) controlHandler() http.Handler {
	mux := http.NewServeMux()
	d := a.daemon
	mux.HandleFunc("GET /status", answer(d, d.Status))
	mux.HandleFunc("GET /ready", answer(d, d.ReadyNow))
	mux.HandleFunc("GET /drain", answer(d, d.Handover))
	mux.HandleFunc("PUT /drain", func(w http.ResponseWriter, r *http.Request) {
		h, err := d.Drain(r.URL.Query().Get("force") == "true")
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		answer(d, func() Handover { return h })(w, r)
	})
	mux.HandleFunc("DELETE /drain", func(w http.ResponseWriter, r *http.Request) {
		answer(d, func() Handover { return d.Undrain(r.Context()) })(w, r)
	})
	mux.HandleFunc("GET /dump/{map}", a.serveEntries)
	mux.HandleFunc("GET /watch/{map}", a.serveEntries)
	mux.HandleFunc("GET /diff/{map}", a.serveDiff)
	mux.HandleFunc("PUT /resync/{map}", a.serveResync)
	mux.HandleFunc("PUT /reload", a.serveReload)
	mux.HandleFunc("PUT /forget", a.serveForget)
	mux.HandleFunc("GET /kernel-calls", a.serveKernelCalls)
	mux.HandleFunc("PUT /scans/pause", a.servePauseScans)
	mux.HandleFunc("DELETE /scans/pause", a.serveResumeScans)
	mux.HandleFunc("PUT /purge/{map}", a.servePurge)
	return mux
}

// answer returns a handler that responds with the result of fn as JSON.
func answer[T any](d *Daemon, fn func() T) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(fn()); err != nil {
			d.log.Debug("control request aborted", "error", err)
		}
	}
}

// Client sends requests to a running daemon over its control socket.
type Client struct {
	socket string
	http   http.Client
}

// NewClient returns a client of the daemon that listens on socket.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Client{socket: socket, http: http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// ErrUse is wrapped by the errors of a Client whose request names a map, a field or an option
// that the daemon does not have.
var ErrUse = errors.New("wrong use")

// ErrNotRunning is wrapped by the errors of a Client if no daemon answers on the control socket.
var ErrNotRunning = errors.New("no syncd answers")

// Status returns the status of the daemon.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return ask[Status](ctx, c, http.MethodGet, "/status")
}

// Ready returns the readiness of the node.
func (c *Client) Ready(ctx context.Context) (Readiness, error) {
	return ask[Readiness](ctx, c, http.MethodGet, "/ready")
}

// Handover returns how far a drained node has handed over.
func (c *Client) Handover(ctx context.Context) (Handover, error) {
	return ask[Handover](ctx, c, http.MethodGet, "/drain")
}

// Drain takes the node out of service. The node is not ready when Drain returns without an error.
// Without force, the daemon refuses if no live peer receives from it.
func (c *Client) Drain(ctx context.Context, force bool) (Handover, error) {
	return ask[Handover](ctx, c, http.MethodPut, "/drain?force="+strconv.FormatBool(force))
}

// Undrain puts the node into service again. It waits a few seconds for the kernel maps to be
// refilled. Until then the result is still drained, and has Ending set.
func (c *Client) Undrain(ctx context.Context) (Handover, error) {
	return ask[Handover](ctx, c, http.MethodDelete, "/drain")
}

// Reload makes the daemon read its settings again. The error wraps ErrSettings if the settings
// cannot be used.
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	answer, err := ask[struct {
		Reloaded
		Error string `json:"error"`
	}](ctx, c, http.MethodPut, "/reload")
	if err == nil && answer.Error != "" {
		err = settingsError(answer.Error)
	}
	return answer.Reloaded, err
}

// settingsError is an error text of the daemon, as an error that wraps ErrSettings.
type settingsError string

func (e settingsError) Error() string { return string(e) }
func (e settingsError) Unwrap() error { return ErrSettings }

func (a *admin) serveReload(w http.ResponseWriter, r *http.Request) {
	done, err := a.daemon.Reload(r.Context())
	answer(a.daemon, func() any {
		if err != nil {
			return map[string]string{"error": err.Error()}
		}
		return done
	})(w, r)
}

// ask sends a request and decodes its JSON response.
func ask[T any](ctx context.Context, c *Client, method, path string) (v T, err error) {
	body, err := c.do(ctx, method, path)
	if err != nil {
		return v, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&v); err != nil {
		return v, fmt.Errorf("read answer about %s: %w", path, err)
	}
	return v, nil
}

// Entries calls fn for each record of a map that matches q, until fn returns an error. With
// q.Watch it continues until ctx ends, and then returns nil.
func (c *Client) Entries(ctx context.Context, name string, q EntryQuery, fn func(*Entry) error) error {
	body, err := c.get(ctx, q.path(name))
	if err != nil {
		return err
	}
	defer body.Close()
	if q.Opened != nil {
		q.Opened()
	}
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

func (c *Client) get(ctx context.Context, path string) (io.ReadCloser, error) {
	return c.do(ctx, http.MethodGet, path)
}

func (c *Client) do(ctx context.Context, method, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://syncd"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("request to syncd: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w on %s (is it running, and may you open its socket?): %w", ErrNotRunning, c.socket, err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		switch response.StatusCode {
		case http.StatusBadRequest, http.StatusNotFound:
			return nil, fmt.Errorf("%w: %s", ErrUse, strings.TrimSpace(string(text)))
		case http.StatusConflict:
			return nil, errors.New(strings.TrimSpace(string(text)))
		}
		return nil, fmt.Errorf("syncd refused %s: %s", path, strings.TrimSpace(string(text)))
	}
	return response.Body, nil
}

// listenControl listens on the control socket. It takes the socket over from a daemon that was
// killed, and fails if another daemon still answers. It keeps a path that is not a socket: the
// path may be an operator's file, or a symbolic link to one.
func listenControl(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("listen for control: %s exists and is not a socket (%s): remove it, or set another control-socket", path, info.Mode())
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("another syncd answers on %s: stop it, or set another control-socket", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove a stale control socket: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the control socket's directory: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for control: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict the control socket: %w", err), l.Close())
	}
	return l, nil
}
