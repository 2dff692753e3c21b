package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"mapsync/syncd/events"
)

// Client sends requests to a running daemon over its control socket.
type Client struct {
	// Timeout is the time for which the daemon may send nothing: before its answer, and between two parts of it. A daemon
	// that works on a request, or has nothing to send, sends something once in keepAliveInterval. 0: no limit.
	Timeout time.Duration

	socket string
	http   http.Client
}

// NewClient returns a client of the daemon that listens on socket.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Client{socket: socket, http: http.Client{Transport: &http.Transport{DialContext: dial, ReadBufferSize: listBuffer}}}
}

// ErrUse is wrapped by the errors of a Client whose request names a map, a field or an option
// that the daemon does not have.
var ErrUse = errors.New("wrong use")

// Status returns the status of the daemon.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return ask[Status](ctx, c, http.MethodGet, "/status")
}

// Events returns the events of the node since a time, the latest ones, at most limit.
func (c *Client) Events(ctx context.Context, since time.Time, limit int) (events.List, error) {
	return ask[events.List](ctx, c, http.MethodGet, eventsPath(since, limit))
}

func eventsPath(since time.Time, limit int) string {
	return "/events?" + url.Values{"since": {since.UTC().Format(time.RFC3339Nano)}, "limit": {strconv.Itoa(limit)}}.Encode()
}

// ClusterStatus returns the status of each node of the cluster that this node knows. The answer of a node is its Status.
func (c *Client) ClusterStatus(ctx context.Context) (ClusterAnswer, error) {
	return ask[ClusterAnswer](ctx, c, http.MethodGet, "/cluster/status")
}

// ClusterEvents returns the events of each node, as Events does.
func (c *Client) ClusterEvents(ctx context.Context, since time.Time, limit int) (ClusterAnswer, error) {
	return ask[ClusterAnswer](ctx, c, http.MethodGet, "/cluster"+eventsPath(since, limit))
}

// ClusterExplain returns what each node has of some keys of a map. The answer of a node is an Explanation.
func (c *Client) ClusterExplain(ctx context.Context, name string, q ExplainQuery) (ClusterAnswer, error) {
	return ask[ClusterAnswer](ctx, c, http.MethodGet, "/cluster"+q.path(name))
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
// Without force, the daemon refuses if no peer can take over.
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

// do sends a request and returns the answer of the daemon. The caller closes it.
func (c *Client) do(ctx context.Context, method, path string) (io.ReadCloser, error) {
	r := c.newReply(ctx, method)
	request, err := http.NewRequestWithContext(r.ctx, method, "http://syncd"+path, nil)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("request to syncd: %w", err), r.Close())
	}
	response, err := c.http.Do(request)
	r.pause()
	if err != nil {
		return nil, errors.Join(r.failure(err), r.Close())
	}
	r.body = response.Body
	if response.StatusCode != http.StatusOK {
		defer r.Close()
		return nil, refusal(response.StatusCode, path, r)
	}
	return r, nil
}

// refusal returns the error of an answer with another status than OK.
func refusal(status int, path string, body io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(body, 4096))
	if err != nil {
		return fmt.Errorf("read answer about %s: %w", path, err)
	}
	reason := strings.TrimSpace(string(text))
	switch status {
	case http.StatusBadRequest, http.StatusNotFound:
		return fmt.Errorf("%w: %s", ErrUse, reason)
	case http.StatusConflict:
		return errors.New(reason)
	}
	return fmt.Errorf("syncd refused %s: %s", path, reason)
}
