package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"syscall"
	"time"
)

// ErrNotRunning is wrapped by the errors of a Client if no daemon answers on the control socket, or the daemon stops
// answering. The error has the remedy.
var ErrNotRunning = errors.New("no syncd answers")

// silence is the cause of the end of a request to a daemon that has sent nothing for so long.
type silence time.Duration

func (s silence) Error() string { return "it has sent nothing for " + time.Duration(s).String() }

// Unwrap makes the error a timeout.
func (s silence) Unwrap() error { return context.DeadlineExceeded }

// reply is the answer to a request. Its context ends if the daemon is silent for too long while the client waits for it.
type reply struct {
	client *Client
	method string
	body   io.ReadCloser   // nil before the answer has begun
	caller context.Context // of the caller
	ctx    context.Context // of the request
	end    context.CancelCauseFunc
	timer  *time.Timer // runs while the client waits; nil: the client waits without limit
}

// newReply returns the answer to a request that is about to be sent. The client waits for it.
func (c *Client) newReply(ctx context.Context, method string) *reply {
	r := &reply{client: c, method: method, caller: ctx}
	r.ctx, r.end = context.WithCancelCause(ctx)
	if c.Timeout > 0 {
		r.timer = time.AfterFunc(c.Timeout, func() { r.end(silence(c.Timeout)) })
	}
	// The daemon sends interim responses while it works on a request.
	r.ctx = httptrace.WithClientTrace(r.ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(int, textproto.MIMEHeader) error { r.wait(); return nil },
	})
	return r
}

// wait begins the time within which the daemon must send something.
func (r *reply) wait() {
	if r.timer != nil {
		r.timer.Reset(r.client.Timeout)
	}
}

// pause ends that time.
func (r *reply) pause() {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// Read reads the body. A client that does not read does not wait.
func (r *reply) Read(p []byte) (int, error) {
	r.wait()
	n, err := r.body.Read(p)
	r.pause()
	if err != nil && !errors.Is(err, io.EOF) && errors.As(context.Cause(r.ctx), new(silence)) {
		err = r.failure(err)
	}
	return n, err
}

// Close releases the connection. An answer that was not read to its end ends.
func (r *reply) Close() (err error) {
	r.pause()
	r.end(nil)
	if r.body != nil {
		err = r.body.Close()
	}
	return err
}

// failure returns the error of a request without an answer, with the remedy. An interrupted request says nothing about the
// daemon.
func (r *reply) failure(err error) error {
	if err := r.caller.Err(); errors.Is(err, context.Canceled) {
		return fmt.Errorf("request to syncd: %w", err)
	}
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	var dial *net.OpError
	if errors.As(err, &dial) {
		err = dial.Err
	}
	remedy := "`systemctl start syncd` starts it, --control-socket chooses another socket"
	switch cause := context.Cause(r.ctx); {
	case cause != nil || errors.Is(err, syscall.EAGAIN): // EAGAIN: the queue of connections is full
		if cause != nil {
			err = cause
		}
		remedy = "`systemctl restart syncd` ends a syncd that is stuck, a longer --timeout or --answer-timeout waits for one that is overloaded"
		if r.method != http.MethodGet {
			remedy += "; if it continues, it still executes this request"
		}
	case errors.Is(err, fs.ErrPermission):
		remedy = "run the command as root, or as the user of syncd"
	}
	return fmt.Errorf("%w on %s: %w (%s)", ErrNotRunning, r.client.socket, err, remedy)
}
