package daemon

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"mapsync/syncd/table"
)

// Entry is one record of a map as `syncd dump` shows it. Keys and values are hex.
type Entry struct {
	Key         string    `json:"key"`
	Value       string    `json:"value,omitempty"`
	Deleted     bool      `json:"deleted,omitempty"`
	Owner       string    `json:"owner,omitempty"` // empty: nobody has claimed it yet
	Incarnation uint64    `json:"incarnation,omitempty"`
	Changed     time.Time `json:"changed,omitzero"` // by the clock of its version
	Version     uint64    `json:"version"`
	Pending     bool      `json:"pending,omitempty"` // still to be written to the kernel map
}

func (a *admin) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(a.daemon.Status()); err != nil {
			a.daemon.log.Debug("a status request ended early", "error", err)
		}
	})
	mux.HandleFunc("GET /dump/{map}", func(w http.ResponseWriter, r *http.Request) {
		m := a.daemon.replica(r.PathValue("map"))
		if m == nil {
			http.Error(w, "no such map: "+strings.Join(a.daemon.mapNames(), ", ")+" are replicated here", http.StatusNotFound)
			return
		}
		if err := m.dump(w, r.URL.Query().Has("tombstones")); err != nil {
			a.daemon.log.Debug("a dump ended early", "error", err)
		}
	})
	return mux
}

// dumpChunk is how many entries one hold of the table's lock copies out.
const dumpChunk = 1024

const dumpLaps = 4

// dump writes the map's records as JSON, one a line. Records that change while
// it runs may come twice, the newer one last; a dump that changes outrun ends
// after dumpLaps times the records that there were.
func (m *replica) dump(w io.Writer, tombstones bool) error {
	t := m.currentTable()
	if t == nil {
		return nil
	}
	cursor := t.NewCursor(0)
	defer cursor.Close()
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out)
	entries := make([]Entry, 0, dumpChunk)
	st := t.Stats()
	left := dumpChunk + dumpLaps*(st.Live+st.Tombstones)
	for done := false; !done; {
		entries = entries[:0]
		t.View(func(tx *table.Tx) {
			var rec table.Record
			for range dumpChunk {
				if left--; left < 0 || !tx.Next(cursor, &rec) {
					done = true
					return
				}
				if !rec.Delete || tombstones {
					entries = append(entries, newEntry(tx, &rec))
				}
			}
		})
		for i := range entries {
			if err := encoder.Encode(&entries[i]); err != nil {
				return fmt.Errorf("write dump: %w", err)
			}
		}
	}
	return out.Flush()
}

func newEntry(tx *table.Tx, rec *table.Record) Entry {
	e := Entry{Key: hex.EncodeToString(rec.Key), Deleted: rec.Delete, Version: uint64(rec.Version), Pending: rec.Dirty}
	if !rec.Delete {
		e.Value = hex.EncodeToString(rec.Value)
	}
	if rec.Version != 0 {
		owner := tx.Owner(rec.Owner)
		e.Owner, e.Incarnation = owner.Node, owner.Incarnation
		e.Changed = time.Unix(0, int64(rec.Version))
	}
	return e
}

// Bytes returns the key and the value, nil of a deleted entry.
func (e *Entry) Bytes() (key, value []byte, err error) {
	if key, err = hex.DecodeString(e.Key); err != nil {
		return nil, nil, fmt.Errorf("decode key: %w", err)
	}
	if e.Deleted {
		return key, nil, nil
	}
	if value, err = hex.DecodeString(e.Value); err != nil {
		return nil, nil, fmt.Errorf("decode value: %w", err)
	}
	return key, value, nil
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

// Dump calls fn for each record of the map, tombstones too when asked for.
func (c *Client) Dump(ctx context.Context, name string, tombstones bool, fn func(*Entry) error) error {
	path := "/dump/" + url.PathEscape(name)
	if tombstones {
		path += "?tombstones"
	}
	body, err := c.get(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	decoder := json.NewDecoder(body)
	for {
		var e Entry
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read dump: %w", err)
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
