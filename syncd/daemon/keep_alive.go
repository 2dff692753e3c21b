package daemon

import (
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// keepAliveInterval is the interval at which the daemon sends something to a client whose request takes longer. A client
	// may take a daemon that sends nothing for stopped: see Client.Timeout.
	keepAliveInterval = time.Second
	// maxKeepAlive is the time for which a request that makes no progress is kept alive. It exceeds the time limits of the
	// work in this package.
	maxKeepAlive = 2 * compareTimeout
)

// interim sends an interim response before an answer.
func interim(w http.ResponseWriter) { w.WriteHeader(http.StatusProcessing) }

// emptyLine sends an empty line within an answer of lines. Clients skip it.
func emptyLine(w http.ResponseWriter) {
	_, _ = io.WriteString(w, "\n") // the next write of the handler returns the error
	_ = http.NewResponseController(w).Flush()
}

// keepAlive calls work, and meanwhile send once in keepAliveInterval. work must not use w.
func keepAlive(w http.ResponseWriter, send func(http.ResponseWriter), work func()) {
	ended := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		tick := time.NewTicker(keepAliveInterval)
		defer tick.Stop()
		for range maxKeepAlive / keepAliveInterval {
			select {
			case <-ended:
				return
			case <-tick.C:
				send(w)
			}
		}
	})
	defer sender.Wait()
	defer close(ended)
	work()
}
