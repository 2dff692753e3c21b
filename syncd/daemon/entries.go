package daemon

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Form is the form of keys and values in the output.
type Form string

// The forms.
const (
	FormJSON Form = "json" // an object of typed fields
	FormText Form = "text" // a string for people, without zero fields
	FormRaw  Form = "raw"  // a hex string: the bytes of the kernel map
)

// EntryQuery selects the entries of a map and the form of the output.
type EntryQuery struct {
	Form       Form     // empty: FormJSON
	Where      []string // conditions like "dport=443"; an entry must meet all of them
	Tombstones bool     // include tombstones
	Watch      bool     // print later changes, including deletes, instead of the current records
	Text       bool     // only for WriteEntries: lines for people instead of JSON
	// Opened is called when the daemon has begun to answer: with Watch, no later change is missing. It may be nil.
	Opened func()
}

func (q *EntryQuery) path(name string) string {
	what := "/dump/"
	if q.Watch {
		what = "/watch/"
	}
	form := q.Form
	if form == "" {
		form = FormJSON
	}
	values := url.Values{"form": {string(form)}, "where": q.Where, "tombstones": {strconv.FormatBool(q.Tombstones)}, "text": {strconv.FormatBool(q.Text)}}
	return what + url.PathEscape(name) + "?" + values.Encode()
}

// Entry is one record of a map as `syncd dump` and `syncd watch` show it.
type Entry struct {
	Key         json.RawMessage `json:"key"`             // in the form of the query
	Value       json.RawMessage `json:"value,omitempty"` // absent if the key is deleted
	Deleted     bool            `json:"deleted,omitempty"`
	Expired     bool            `json:"expired,omitempty"` // deleted by expiry; a kernel map may still hold it
	Owner       string          `json:"owner,omitempty"`   // empty: not adopted yet
	Incarnation uint64          `json:"incarnation,omitempty,string"`
	Changed     time.Time       `json:"changed,omitzero"` // time of the version; absent: older than syncd
	Version     uint64          `json:"version,string"`
	Pending     bool            `json:"pending,omitempty"` // not yet written to the kernel map
}

// Bytes returns the key and the value of an entry in FormRaw. The value of a deleted entry is
// nil.
func (e *Entry) Bytes() (key, value []byte, err error) {
	if key, err = unhex(e.Key); err != nil {
		return nil, nil, fmt.Errorf("decode key: %w", err)
	}
	if e.Deleted {
		return key, nil, nil
	}
	if value, err = unhex(e.Value); err != nil {
		return nil, nil, fmt.Errorf("decode value: %w", err)
	}
	return key, value, nil
}

func unhex(text json.RawMessage) ([]byte, error) {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	return hex.DecodeString(s)
}

// serveEntries answers a dump or watch request.
func (a *admin) serveEntries(w http.ResponseWriter, r *http.Request) {
	m, l := a.listerFor(w, r)
	if m == nil {
		return
	}
	var err error
	if strings.HasPrefix(r.URL.Path, "/watch/") {
		err = l.watch(r.Context(), w, func() bool {
			t, _ := m.current()
			return a.daemon.replica(m.name) == m && t == l.t
		})
		if errors.Is(err, errReplaced) {
			panic(http.ErrAbortHandler) // the client receives an error instead of the end of the list
		}
	} else {
		err = l.dump(w)
	}
	if err != nil {
		a.daemon.log.Debug("entries request aborted", "error", err)
	}
}

// errReplaced ends a watch after the map was removed or got another table.
var errReplaced = errors.New("the map was removed, or has another layout")

// watchCheckInterval is the interval at which a watch checks that its map still has the same
// table.
const watchCheckInterval = time.Second

// listerFor returns the replica in a request, and a lister for it. If the request is not valid,
// listerFor responds with an error and returns nil.
func (a *admin) listerFor(w http.ResponseWriter, r *http.Request) (*replica, *lister) {
	m, t, s := a.daemon.mapFor(w, r)
	if m == nil {
		return nil, nil
	}
	l, err := newLister(a.daemon, t, s, r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, nil
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	return m, l
}
