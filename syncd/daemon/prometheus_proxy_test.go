package daemon_test

import (
	"io"
	"net/http"
	"regexp"
	"sync/atomic"
	"testing"
)

// metricsProxy forwards scrapes of n1 and can change a sample.
type metricsProxy struct {
	address   string
	divergent atomic.Bool
}

var divergentSample = regexp.MustCompile(`(?m)^(mapsync_problem\{id="divergent",.*\}) 0$`)

func newMetricsProxy(t *testing.T, n *node) *metricsProxy {
	t.Helper()
	p := &metricsProxy{address: loopback(101) + ":9746"}
	server := &http.Server{Addr: p.address, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response, err := http.Get("http://" + n.config.MetricsListen + r.URL.Path)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		if p.divergent.Load() {
			text = divergentSample.ReplaceAll(text, []byte("$1 3"))
		}
		w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
		_, _ = w.Write(text)
	})}
	go func() { _ = server.ListenAndServe() }()
	t.Cleanup(func() { _ = server.Close() })
	return p
}
