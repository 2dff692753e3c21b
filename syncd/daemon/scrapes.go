package daemon

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"mapsync/peers"
)

const (
	// scrapesAtOnce is the maximum number of concurrent collections of metrics. One address has one at a time.
	scrapesAtOnce = 4
	// scrapeWait is the longest time for which a scrape waits for its collection, and scrapeWrite for which it may
	// write its response. Prometheus gives up after 10 s by default.
	scrapeWait, scrapeWrite = 10 * time.Second, 10 * time.Second
	// scrapeBytes bounds the memory of the responses that clients have not read. One larger response may exceed it.
	scrapeBytes = 64 << 20
)

// scrapes serves /metrics. It collects a response into memory and writes it afterwards, so that a client that does not
// read delays no other client.
type scrapes struct {
	collect  http.Handler  // writes into memory
	slots    chan struct{} // has an element for each collection
	write    time.Duration // for each response
	maxBytes int

	mu      sync.Mutex
	queues  map[netip.Prefix]*scrapeQueue
	writing []*scrape // oldest first
	bytes   int       // of writing
}

// scrapeQueue has the scrapes of one address that are collected or wait for that.
type scrapeQueue struct {
	slot  chan struct{} // has an element during a collection
	users int           // guarded by scrapes.mu
}

// scrape is a response in memory.
type scrape struct {
	header http.Header
	status int
	body   bytes.Buffer
	end    func() // ends the write
}

func newScrapes(collect http.Handler) *scrapes {
	return &scrapes{
		collect: collect, slots: make(chan struct{}, scrapesAtOnce), write: scrapeWrite, maxBytes: scrapeBytes,
		queues: make(map[netip.Prefix]*scrapeQueue),
	}
}

// Header implements http.ResponseWriter.
func (s *scrape) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *scrape) WriteHeader(status int) { s.status = status }

// Write implements http.ResponseWriter.
func (s *scrape) Write(p []byte) (int, error) { return s.body.Write(p) }

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := s.gather(r)
	if answer == nil {
		http.Error(w, "the metrics were not collected in time: other scrapes of this address, or of all, take too long", http.StatusServiceUnavailable)
		return
	}
	// An error means that the connection has ended: the write fails, too.
	out := http.NewResponseController(w)
	answer.end = func() { _ = out.SetWriteDeadline(time.Unix(1, 0)) }
	_ = out.SetWriteDeadline(time.Now().Add(s.write))
	s.hold(answer)
	defer s.release(answer)
	maps.Copy(w.Header(), answer.header)
	w.Header().Set("Content-Length", strconv.Itoa(answer.body.Len()))
	w.WriteHeader(answer.status)
	_, _ = w.Write(answer.body.Bytes())
}

// gather returns a response, or nil if there is none in time.
func (s *scrapes) gather(r *http.Request) *scrape {
	ctx, cancel := context.WithTimeout(r.Context(), scrapeWait)
	defer cancel()
	from := peers.NetworkOf(r.RemoteAddr)
	queue := s.enter(from)
	defer s.leave(from, queue)
	for _, slot := range []chan struct{}{queue.slot, s.slots} {
		select {
		case slot <- struct{}{}:
			defer func() { <-slot }()
		case <-ctx.Done():
			return nil
		}
	}
	answer := &scrape{header: make(http.Header), status: http.StatusOK}
	s.collect.ServeHTTP(answer, r)
	return answer
}

// enter returns the queue of an address. The caller calls leave at the end.
func (s *scrapes) enter(from netip.Prefix) *scrapeQueue {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue, found := s.queues[from]
	if !found {
		queue = &scrapeQueue{slot: make(chan struct{}, 1)}
		s.queues[from] = queue
	}
	queue.users++
	return queue
}

func (s *scrapes) leave(from netip.Prefix, queue *scrapeQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if queue.users--; queue.users == 0 {
		delete(s.queues, from)
	}
}

// hold adds a response to those in writing. It ends the oldest ones if all of them together exceed maxBytes.
func (s *scrapes) hold(answer *scrape) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = append(s.writing, answer)
	s.bytes += answer.body.Cap()
	for s.bytes > s.maxBytes && len(s.writing) > 1 {
		s.writing[0].end()
		s.remove(0)
	}
}

// release removes a response that was written or ended.
func (s *scrapes) release(answer *scrape) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.writing, answer); i >= 0 {
		s.remove(i)
	}
}

func (s *scrapes) remove(i int) {
	s.bytes -= s.writing[i].body.Cap()
	s.writing = slices.Delete(s.writing, i, i+1)
}
