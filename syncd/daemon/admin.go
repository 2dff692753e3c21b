package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
)

// admin serves operators: metrics and health by HTTP, and, on a unix socket that
// only this user may open, what shows the content of maps.
type admin struct {
	daemon   *Daemon
	metrics  net.Listener // nil: none wanted
	control  net.Listener
	registry *prometheus.Registry
}

func openAdmin(d *Daemon) (_ *admin, err error) {
	a := &admin{daemon: d, registry: prometheus.NewRegistry()}
	a.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newCollector(d))
	if d.config.MetricsListen != "" {
		if a.metrics, err = net.Listen("tcp", d.config.MetricsListen); err != nil {
			return nil, fmt.Errorf("listen for metrics: %w", err)
		}
	}
	if a.control, err = listenControl(d.config.ControlSocket); err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

// listenControl takes the socket over from a daemon that was killed, but not
// from one that still answers.
func listenControl(path string) (net.Listener, error) {
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

// Limits on a client that is slow to speak. Answers may be long: no write limit.
const (
	readHeaderTimeout = 5 * time.Second
	shutdownTimeout   = time.Second
)

func (a *admin) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	serve := func(l net.Listener, h http.Handler) {
		s := &http.Server{Handler: h, ReadHeaderTimeout: readHeaderTimeout}
		g.Go(func() error {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve operators: %w", err)
			}
			return nil
		})
		g.Go(func() error {
			<-ctx.Done()
			late, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
			defer cancel()
			if s.Shutdown(late) != nil {
				return s.Close()
			}
			return nil
		})
	}
	serve(a.control, a.controlHandler())
	if a.metrics != nil {
		serve(a.metrics, a.metricsHandler())
	}
	return g.Wait()
}

func (a *admin) close() error {
	var errs []error
	for _, l := range []net.Listener{a.metrics, a.control} {
		if l == nil {
			continue
		}
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (a *admin) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := a.daemon.ReadyNow()
		if r.Ready {
			fmt.Fprintln(w, "ready")
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		for _, reason := range append(r.Missing, r.Unproven...) {
			fmt.Fprintln(w, reason)
		}
	})
	return mux
}
