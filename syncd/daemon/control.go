package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

func (a *admin) controlHandler() http.Handler {
	mux := http.NewServeMux()
	d := a.daemon
	for _, path := range []string{"/status", "/events"} {
		mux.Handle("GET "+path, d.inspection())
	}
	mux.HandleFunc("GET /cluster/{path...}", a.serveCluster)
	mux.HandleFunc("GET /names", answer(d, d.Names))
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
		var h Handover
		keepAlive(w, interim, func() { h = d.Undrain(r.Context()) })
		answer(d, func() Handover { return h })(w, r)
	})
	mux.HandleFunc("GET /dump/{map}", a.serveEntries)
	mux.HandleFunc("GET /watch/{map}", a.serveEntries)
	mux.HandleFunc("GET /diff/{map}", a.serveDiff)
	mux.HandleFunc("PUT /resync/{map}", a.serveResync)
	mux.HandleFunc("PUT /pause/{map}", a.servePause)
	mux.HandleFunc("DELETE /pause/{map}", a.servePause)
	mux.HandleFunc("PUT /reload", a.serveReload)
	mux.HandleFunc("PUT /forget", a.serveForget)
	mux.HandleFunc("GET /kernel-calls", a.serveKernelCalls)
	mux.HandleFunc("PUT /scans/pause", a.servePauseScans)
	mux.HandleFunc("DELETE /scans/pause", a.serveResumeScans)
	mux.HandleFunc("PUT /purge/{map}", a.servePurge)
	mux.HandleFunc("PUT /clears/{decision}/{map}", a.serveDecideClear)
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

func (a *admin) serveReload(w http.ResponseWriter, r *http.Request) {
	var done Reloaded
	var err error
	keepAlive(w, interim, func() { done, err = a.daemon.Reload(r.Context()) })
	answer(a.daemon, func() any {
		if err != nil {
			return map[string]string{"error": err.Error()}
		}
		return done
	})(w, r)
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
