package daemon_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
)

// The lines of a dump are the entries that the client decodes, in each form.
func TestDumpLines(t *testing.T) {
	const count = 3000 // several parts
	path := filepath.Join(pinDir(t), "ct")
	m := typed(t, path, keyV1, valueV1, 2*count)
	n := newNode(t, 1, "ct="+path)
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	n.writeSessions(m, keyV1, valueV1, 0, count, 7)
	poll.Eventually(t, "the node has the entries", func() bool { return strings.Count(n.owners(), "\n") == count })
	for _, form := range []daemon.Form{daemon.FormJSON, daemon.FormText, daemon.FormRaw} {
		query := daemon.EntryQuery{Form: form}
		var want, got, text bytes.Buffer
		encoder := json.NewEncoder(&want)
		err := n.client.Entries(t.Context(), "ct", query, func(e *daemon.Entry) error { return encoder.Encode(e) })
		if err != nil {
			t.Fatal(err)
		}
		if err := n.client.WriteEntries(t.Context(), "ct", query, &got); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("dump as %s: got %d bytes, error %v, want the %d bytes of the entries", form, got.Len(), err, want.Len())
		}
		query.Text = true
		if err := n.client.WriteEntries(t.Context(), "ct", query, &text); err != nil || strings.Count(text.String(), " owner=n1 changed=2") != count {
			t.Errorf("dump as text, %s: got %d lines, error %v, want %d with owners and times", form, strings.Count(text.String(), "\n"), err, count)
		}
		if lines := strings.Count(got.String(), "\n"); lines != count {
			t.Errorf("dump as %s: got %d lines, want %d", form, lines, count)
		}
	}
	for addr, want := range map[int]string{7: "{addr=7 port=443 zone=1} {bytes=1007 state=7} owner=n1 ", count: ""} {
		var one bytes.Buffer
		query := daemon.EntryQuery{Form: daemon.FormText, Text: true, Where: []string{fmt.Sprint("addr=", addr), "port=443", "zone=1"}}
		if err := n.client.WriteEntries(t.Context(), "ct", query, &one); err != nil || !strings.HasPrefix(one.String(), want) || (one.Len() == 0) != (want == "") {
			t.Errorf("dump of address %d: got %q, error %v, want %q", addr, one.String(), err, want)
		}
	}
}
