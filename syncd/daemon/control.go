package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

func (a *admin) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(a.daemon.Status()); err != nil {
			a.daemon.log.Debug("a status request ended early", "error", err)
		}
	})
	mux.HandleFunc("GET /dump/{map}", a.serveEntries)
	mux.HandleFunc("GET /watch/{map}", a.serveEntries)
	return mux
}

// Client asks a running daemon on its control socket.
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

// ErrNotRunning says that no daemon answers on the control socket.
var ErrNotRunning = errors.New("no syncd answers")

// Status asks for the daemon's status.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	body, err := c.get(ctx, "/status")
	if err != nil {
		return s, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&s); err != nil {
		return s, fmt.Errorf("read status: %w", err)
	}
	return s, nil
}

// Entries calls fn for each record of a map that is asked for. With Watch it goes
// on until ctx ends.
func (c *Client) Entries(ctx context.Context, name string, q EntryQuery, fn func(*Entry) error) error {
	body, err := c.get(ctx, q.path(name))
	if err != nil {
		return err
	}
	defer body.Close()
	decoder := json.NewDecoder(body)
	for {
		var e Entry
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) || ctx.Err() != nil {
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
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://syncd"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask syncd: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w on %s (is it running, and may you open its socket?): %w", ErrNotRunning, c.socket, err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		return nil, fmt.Errorf("syncd refused %s: %s", path, strings.TrimSpace(string(text)))
	}
	return response.Body, nil
}
