package cluster

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"

	"mapsync/syncd/daemon"
)

// place is the environment of the nodes: containers, or processes of this machine.
type place interface {
	// start starts node number i. It returns the node's IP address and the address of its control
	// server.
	start(ctx context.Context, i int, m mapSettings) (address, control string, err error)
}

// Ports of every node. Each node has its own address.
const (
	controlPort = "8000"
	gossipPort  = "7946"
	grpcPort    = "7947"
	metricsPort = "9746"
)

// remote is the test's handle of a node.
type remote struct {
	name    string
	control string
	http    *http.Client
}

func newRemote(name, control string) *remote {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, controlNetwork(control), control)
	}
	return &remote{name: name, control: control, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

func (r *remote) call(ctx context.Context, method, path string, body, result any) error {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		in = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://node"+path, in)
	if err != nil {
		return fmt.Errorf("ask node %s: %w", r.name, err)
	}
	response, err := r.http.Do(request)
	if err != nil {
		return fmt.Errorf("ask node %s: %w", r.name, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("node %s, %s: %s", r.name, path, strings.TrimSpace(string(text)))
	}
	if result == nil {
		return nil
	}
	if err := gob.NewDecoder(response.Body).Decode(result); err != nil {
		return fmt.Errorf("read answer of node %s: %w", r.name, err)
	}
	return nil
}

func (r *remote) post(ctx context.Context, path string) error {
	return r.call(ctx, http.MethodPost, path, nil, nil)
}

func (r *remote) content(ctx context.Context, path string) (content, error) {
	var c content
	err := r.call(ctx, http.MethodGet, path, nil, &c)
	return c, err
}

func (r *remote) status(ctx context.Context) (daemon.Status, error) {
	var data []byte
	var s daemon.Status
	if err := r.call(ctx, http.MethodGet, "/status", nil, &data); err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read status of node %s: %w", r.name, err)
	}
	return s, nil
}

// difference returns a short error that describes how got differs from want; nil if they are equal.
func difference(what string, want, got content) error {
	var missing, surplus, other int
	example := ""
	for key, value := range want {
		have, ok := got[key]
		if ok && have == value {
			continue
		}
		if ok {
			other++
		} else {
			missing++
		}
		example = key
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			surplus++
			example = key
		}
	}
	if missing+surplus+other == 0 {
		return nil
	}
	return fmt.Errorf("%s: of %d entries %d are missing and %d differ, %d are too many, such as node and flow %x: want version %x, got %x",
		what, len(want), missing, other, surplus, example[:8], head(want[example]), head(got[example]))
}

func head(s string) string { return s[:min(8, len(s))] }

// checkConverged compares the kernel map and the table of every node with the entries that all
// nodes' data planes wrote, by their digests. It requests the tables only after the maps agree:
// sending a table takes seconds on a busy machine, and the node may converge during this time.
func checkConverged(ctx context.Context, nodes []*remote) error {
	if err := checkDigests(ctx, nodes, "/kernel/digest", "kernel map"); err != nil {
		return err
	}
	return checkDigests(ctx, nodes, "/table/digest", "table")
}

// checkDigests compares the digests of all nodes for one path.
func checkDigests(ctx context.Context, nodes []*remote, path, what string) error {
	var want digest
	all := make([]digests, len(nodes))
	for i, n := range nodes {
		if err := n.call(ctx, http.MethodGet, path, nil, &all[i]); err != nil {
			return err
		}
		want.add(all[i].Expected)
	}
	for i, n := range nodes {
		if got := all[i].Held; got != want {
			return fmt.Errorf("node %s holds %d entries in its %s, want %d; sums %x, want %x",
				n.name, got.Entries, what, want.Entries, got.Sum, want.Sum)
		}
	}
	return nil
}

// differences returns an error that lists the entries that differ between the nodes and the
// expected content.
func differences(ctx context.Context, nodes []*remote) error {
	want := make(content)
	for _, n := range nodes {
		own, err := n.content(ctx, "/expected")
		if err != nil {
			return err
		}
		maps.Copy(want, own)
	}
	var errs []error
	for _, n := range nodes {
		for _, path := range []string{"/kernel", "/table"} {
			got, err := n.content(ctx, path)
			if err == nil {
				err = difference(n.name+path, want, got)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
