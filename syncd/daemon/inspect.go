package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"mapsync/printable"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/events"
	"mapsync/syncd/replicate"
	"mapsync/syncd/replicate/wire"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits of questions between nodes.
const (
	// maxQuestion and maxAnswer are the maximum sizes of a question and of an answer in bytes.
	maxQuestion = 32 << 10
	maxAnswer   = 4 << 20
	// maxAnswering is the number of questions that a node answers at a time.
	maxAnswering = 4
	// answerTime is the time in which a node answers.
	answerTime = 3 * time.Second
	// maxAsked is the number of peers that a node asks for one request, maxAsking that at a time.
	maxAsked  = 256
	maxAsking = 16
	// maxAnswers is the maximum size of the answers of all peers together in bytes.
	maxAnswers = 64 << 20
)

// inspection is what the node shows to operators at any node of the cluster. It changes nothing.
func (d *Daemon) inspection() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", answer(d, d.Status))
	mux.HandleFunc("GET /events", d.serveEvents)
	mux.HandleFunc("GET /explain/{map}", d.serveExplain)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this release of syncd does not know the question", http.StatusNotImplemented)
	})
	return mux
}

// inspector answers the questions of other nodes. It implements mapsyncv1.InspectionServiceServer.
type inspector struct {
	mapsyncv1.UnimplementedInspectionServiceServer
	daemon *Daemon
	mux    *http.ServeMux
	busy   chan struct{} // has an element for each question that is being answered
}

func newInspector(d *Daemon) *inspector {
	return &inspector{daemon: d, mux: d.inspection(), busy: make(chan struct{}, maxAnswering)}
}

// Inspect answers a question of another node. The errors are gRPC statuses.
func (x *inspector) Inspect(ctx context.Context, q *mapsyncv1.InspectRequest) (*mapsyncv1.InspectResponse, error) {
	if err := wire.CheckName(q.GetNode()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if caller, err := x.daemon.authenticate(ctx, q.GetNode()); err != nil || !caller.Replica {
		return nil, status.Error(codes.PermissionDenied, "only nodes of the cluster may ask")
	}
	if len(q.GetPath()) > maxQuestion || !strings.HasPrefix(q.GetPath(), "/") {
		return nil, status.Error(codes.InvalidArgument, "the question has no valid path")
	}
	select {
	case x.busy <- struct{}{}:
		defer func() { <-x.busy }()
	default:
		return nil, status.Error(codes.ResourceExhausted, "too many questions at a time")
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, askingNode{}, q.GetNode()), answerTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://syncd"+q.GetPath(), nil)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "the question has no valid path")
	}
	w := &boundedAnswer{header: make(http.Header), code: http.StatusOK}
	x.mux.ServeHTTP(w, request)
	switch text := printable.Truncated(strings.TrimSpace(w.body.String()), maxQuestion); {
	case w.code == http.StatusNotImplemented:
		return nil, status.Error(codes.Unimplemented, text)
	case w.code == http.StatusNotFound:
		return nil, status.Error(codes.NotFound, text)
	case w.code != http.StatusOK:
		return nil, status.Error(codes.FailedPrecondition, text)
	case w.exceeded:
		return nil, status.Errorf(codes.ResourceExhausted, "the answer has more than %d MiB", maxAnswer>>20)
	}
	return &mapsyncv1.InspectResponse{Json: w.body.Bytes()}, nil
}

// askingNode is the key of a context for the name of the node that asks. A question of an operator of this node has none.
type askingNode struct{}

// boundedAnswer is an http.ResponseWriter with at most maxAnswer bytes.
type boundedAnswer struct {
	header   http.Header
	code     int
	body     bytes.Buffer
	exceeded bool
}

// Header implements http.ResponseWriter.
func (w *boundedAnswer) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *boundedAnswer) WriteHeader(code int) { w.code = code }

// Write implements http.ResponseWriter.
func (w *boundedAnswer) Write(b []byte) (int, error) {
	if w.body.Len()+len(b) > maxAnswer-maxQuestion {
		w.exceeded = true
		return 0, errors.New("answer too large")
	}
	return w.body.Write(b)
}

// NodeAnswer is the answer of one node to a question about the cluster.
type NodeAnswer struct {
	Node string `json:"node"`
	// Address is the address of its replication service, empty for the node that was asked.
	Address string `json:"address,omitempty"`
	// Error is the reason if there is no answer, as a text for operators.
	Error string `json:"error,omitempty"`
	// Answer is the answer, as the control socket of that node gives it.
	Answer json.RawMessage `json:"answer,omitempty"`

	wrongUse bool // the node that was asked cannot answer the question
}

// ClusterAnswer is the answers of all nodes to a question, sorted by node.
type ClusterAnswer struct {
	Nodes []NodeAnswer `json:"nodes"`
}

// serveCluster asks this node and all its live peers.
func (a *admin) serveCluster(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/cluster")
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	var all ClusterAnswer
	keepAlive(w, interim, func() { all = a.daemon.askCluster(r.Context(), path) })
	// If no node answers, the question may be wrong.
	if i := slices.IndexFunc(all.Nodes, func(n NodeAnswer) bool { return n.wrongUse }); i >= 0 && !all.some() {
		http.Error(w, all.Nodes[i].Error, http.StatusBadRequest)
		return
	}
	answer(a.daemon, func() ClusterAnswer { return all })(w, r)
}

// some reports whether any node answers.
func (a *ClusterAnswer) some() bool {
	return slices.ContainsFunc(a.Nodes, func(n NodeAnswer) bool { return n.Error == "" })
}

// askCluster asks this node and all its live peers. Expected peers that are not live have an error.
func (d *Daemon) askCluster(ctx context.Context, path string) ClusterAnswer {
	all := ClusterAnswer{Nodes: []NodeAnswer{d.askSelf(ctx, path)}}
	peers := d.replicator.Status()
	answers := make([]NodeAnswer, len(peers))
	var size atomic.Int64 // of the answers so far
	var asking errgroup.Group
	asking.SetLimit(maxAsking)
	for i := range peers {
		p := replicate.Peer{Node: peers[i].Node, Incarnation: peers[i].Incarnation, Addr: peers[i].Addr}
		if answers[i] = (NodeAnswer{Node: p.Node, Address: p.Addr}); i >= maxAsked {
			answers[i].Error = fmt.Sprintf("not asked: there are more than %d peers", maxAsked)
			continue
		}
		asking.Go(func() error {
			n := d.askPeer(ctx, p, path)
			if size.Add(int64(len(n.Answer))) > maxAnswers {
				n.Answer, n.Error = nil, fmt.Sprintf("the answers of all peers have more than %d MiB", maxAnswers>>20)
			}
			answers[i] = n
			return nil
		})
	}
	_ = asking.Wait() // no call fails
	all.Nodes = append(all.Nodes, answers...)
	_, absent := d.redundancy(time.Now())
	for _, p := range absent {
		if !p.Expected {
			continue
		}
		text := "it is expected, and this node has never seen it"
		if !p.LastContact.IsZero() {
			text = fmt.Sprintf("lost %s ago", Ago(time.Since(p.LastContact)))
		}
		all.Nodes = append(all.Nodes, NodeAnswer{Node: p.Node, Error: text})
	}
	slices.SortStableFunc(all.Nodes, func(a, b NodeAnswer) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

func (d *Daemon) askSelf(ctx context.Context, path string) NodeAnswer {
	n := NodeAnswer{Node: d.self.Node}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://syncd"+path, nil)
	if err != nil {
		n.Error = err.Error()
		return n
	}
	w := &boundedAnswer{header: make(http.Header), code: http.StatusOK}
	d.inspection().ServeHTTP(w, request)
	if w.code != http.StatusOK {
		n.Error, n.wrongUse = strings.TrimSpace(w.body.String()), w.code == http.StatusBadRequest || w.code == http.StatusNotFound
		return n
	}
	if n.Answer = w.body.Bytes(); w.exceeded {
		n.Answer, n.Error = nil, fmt.Sprintf("the answer has more than %d MiB", maxAnswer>>20)
	}
	return n
}

// askPeer asks a peer over a connection of its own.
func (d *Daemon) askPeer(ctx context.Context, p replicate.Peer, path string) NodeAnswer {
	n := NodeAnswer{Node: p.Node, Address: p.Addr}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := d.dialPeer(p)
	if err != nil {
		n.Error = err.Error()
		return n
	}
	defer conn.Close()
	reply, err := mapsyncv1.NewInspectionServiceClient(conn).Inspect(ctx, &mapsyncv1.InspectRequest{Node: d.self.Node, Path: path},
		grpc.MaxCallRecvMsgSize(maxAnswer), grpc.WaitForReady(false))
	switch s := status.Convert(err); {
	case err == nil && json.Valid(reply.GetJson()):
		n.Answer = reply.GetJson()
	case err == nil:
		n.Error = "the answer is not JSON"
	case s.Code() == codes.Unimplemented:
		n.Error = "its release of syncd does not answer this question"
	case s.Code() == codes.DeadlineExceeded:
		n.Error = fmt.Sprintf("no answer within %s", answerTime)
	default:
		n.Error = printable.Truncated(s.Message(), maxQuestion)
	}
	return n
}

// maxEvents is the maximum number of events in an answer.
const maxEvents = events.Most

// serveEvents answers with the events since a time in RFC 3339 format, the latest ones, at most limit.
func (d *Daemon) serveEvents(w http.ResponseWriter, r *http.Request) {
	q, since, limit := r.URL.Query(), time.Time{}, maxEvents
	var err error
	if text := q.Get("since"); text != "" {
		since, err = time.Parse(time.RFC3339Nano, text)
	}
	if text := q.Get("limit"); text != "" && err == nil {
		limit, err = strconv.Atoi(text)
	}
	if err != nil || limit < 0 {
		http.Error(w, "give since as a time in RFC 3339 format, and limit as a number", http.StatusBadRequest)
		return
	}
	answer(d, func() events.List {
		l := d.events.Since(since, min(limit, maxEvents))
		l.Shorten(maxAnswer / 2)
		return l
	})(w, r)
}
