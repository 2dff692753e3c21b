package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"mapsync/peers"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
)

// admin serves operators: metrics and health over HTTP, and the other commands over a unix socket
// that only this user may open, because they show the content of maps.
type admin struct {
	daemon   *Daemon
	metrics  net.Listener   // nil: metrics-listen is empty
	limiter  *peers.Limiter // limits the connections to metrics
	control  net.Listener
	registry *prometheus.Registry
}

func openAdmin(d *Daemon) (_ *admin, err error) {
	a := &admin{daemon: d, registry: prometheus.NewRegistry(), limiter: peers.NewLimiter(httpLimits(), d.remoteLog)}
	var registry prometheus.Registerer = a.registry
	if d.config.Cluster != "" {
		registry = prometheus.WrapRegistererWith(prometheus.Labels{"cluster": d.config.Cluster}, registry)
	}
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newCollector(d))
	if d.config.MetricsListen != "" {
		if a.metrics, err = net.Listen("tcp", d.config.MetricsListen); err != nil {
			return nil, fmt.Errorf("listen for metrics: %w", err)
		}
		a.metrics = a.limiter.Listener(a.metrics)
	}
	if a.control, err = listenControl(d.config.ControlSocket); err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

// Limits of HTTP connections.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = time.Minute
	maxHeaderBytes    = 16 << 10
	shutdownTimeout   = time.Second
)

func (a *admin) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	serve := func(l net.Listener, s *http.Server) {
		s.ReadHeaderTimeout, s.IdleTimeout, s.MaxHeaderBytes = readHeaderTimeout, idleTimeout, maxHeaderBytes
		// Any client can cause these lines, so they have the debug level.
		s.ErrorLog = slog.NewLogLogger(a.daemon.log.Handler(), slog.LevelDebug)
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
	// No write timeout: responses may take long.
	serve(a.control, &http.Server{Handler: a.controlHandler(), ConnContext: withCaller})
	if a.metrics != nil {
		serve(a.metrics, &http.Server{Handler: a.metricsHandler(), ReadTimeout: readTimeout, WriteTimeout: writeTimeout})
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
	mux.Handle("GET /metrics", newScrapes(promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{})))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, request *http.Request) {
		r := a.daemon.ReadyNow()
		if r.Ready {
			fmt.Fprintln(w, "ready")
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		for _, reason := range slices.Concat(r.Missing, r.Unproven, r.Clocks) {
			fmt.Fprintln(w, reason)
		}
		if _, verbose := request.URL.Query()["verbose"]; verbose {
			for _, p := range a.daemon.Status().Problems {
				fmt.Fprintln(w, p.String())
			}
		}
	})
	return mux
}
