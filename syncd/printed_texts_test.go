package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/printable"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// daemonName is the name of the node in the test.
const daemonName = "lb1"

// wantPrintable checks that a text has only line feeds, tabs and characters that a terminal shows, and no line that a hostile
// text has begun.
func wantPrintable(t *testing.T, what, text string) {
	t.Helper()
	obeyed := func(r rune) bool { return r != '\n' && r != '\t' && unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) }
	if !utf8.ValidString(text) || strings.ContainsFunc(text, obeyed) {
		t.Errorf("%s: got %q, want UTF-8 without control and format characters", what, text)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), forged) {
			t.Errorf("%s: got a line that a hostile text has begun, want none: %q", what, text)
		}
	}
}

// outputs are the outputs of the commands.
type outputs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *outputs) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *outputs) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// firstLine ends a context with the first complete line.
type firstLine struct {
	bytes.Buffer
	end func()
}

func (l *firstLine) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("\n")) {
		l.end()
	}
	return l.Buffer.Write(p)
}

// runDaemon runs `syncd run` until the end of the test, and returns its log.
func (h *hostileHost) runDaemon() (logged *outputs) {
	h.Helper()
	pair, err := h.ca.Issue(daemonName, testcert.Options{})
	if err != nil {
		h.Fatal(err)
	}
	args := []string{
		"run", "--node-name", daemonName, "--attach", "none", "--scan-interval", "200ms", "--metrics-listen", daemonMetrics,
		"--gossip-listen", daemonGossip, "--grpc-listen", daemonService, "--join", hostileJoin, "--observers", "observer", "--insecure",
		"--tls-cert", pair.CertFile, "--tls-key", pair.KeyFile, "--tls-ca", pair.CAFile, "--log-level", "debug", "--sync-timeout", "1s",
		"--state-dir", h.dir, "--control-socket", h.socket(),
	}
	for _, name := range []string{ctMap, formerMap, otherMap} {
		args = append(args, "--map", name+"="+filepath.Join(h.bpffs, name))
	}
	for _, field := range fieldSettings {
		args = append(args, "--field", field)
	}
	logged = &outputs{}
	ctx, cancel := context.WithCancel(context.Background())
	code := make(chan int, 1)
	go func() {
		root := newRoot()
		root.SetArgs(args)
		root.SetOut(logged)
		root.SetErr(logged)
		code <- execute(ctx, root)
	}()
	h.Cleanup(func() {
		cancel()
		if got := <-code; got != 0 {
			h.Errorf("run: got exit code %d, want 0\n%s", got, logged)
		}
	})
	return logged
}

func (h *hostileHost) socket() string { return filepath.Join(h.dir, "syncd.sock") }

// command runs a command line and returns its standard output and all outputs. A watch ends with its first line.
func (h *hostileHost) command(args ...string) (out, all string) {
	ctx, cancel := context.WithCancel(h.Context())
	defer cancel()
	stdout, both := &firstLine{end: func() {}}, &outputs{}
	if args[0] == "watch" {
		stdout.end = cancel
	}
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(io.MultiWriter(stdout, both))
	root.SetErr(both)
	execute(ctx, root)
	return stdout.String(), both.String()
}

// commandLines are the arguments of each command, in one or more calls. The daemon, its peers and the host have hostile
// texts in all places that the outputs show.
func (h *hostileHost) commandLines() map[string][][]string {
	object, ct, unknown := filepath.Join(h.dir, objectFile), []string{ctMap}, hostile("argument")
	return map[string][][]string{
		"run":                   {{unknown}, {"--map", unknown}},
		"check":                 {nil, {"--map", unknown, "--node-name", unknown}},
		"maps":                  {nil},
		"status":                {nil, {"--all"}, {"--problems"}, {"--cluster"}, {"--cluster", "--json"}},
		"events":                {nil, {"--cluster"}, {"--cluster", "--json"}},
		"explain":               {{ctMap, "--where", "key.bytes!=00"}, {ctMap, "--where", "key.bytes!=00", "--json"}, {ctMap, unknown}, {unknown, unknown}, {ctMap, "--where", unknown}},
		"wait-ready":            {{"--timeout", "1s"}},
		"dump":                  {ct, {ctMap, "--raw"}, {ctMap, "--tombstones"}, {unknown}, {ctMap, "--where", unknown}},
		"watch":                 {ct, {ctMap, "--cluster", "--sum", "n", "--times", "1", "--interval", "100ms"}},
		"diff":                  {ct, {ctMap, "--peer", unknown}, {otherMap}},
		"resync":                {{ctMap, "--timeout", "1s"}},
		"pause":                 {{unknown}},
		"resume":                {{unknown}, ct},
		"forget":                {{"--owner", unknown, "--yes"}, {"--owner", unknown}, {"--owner", "lb9", "--yes", ctMap}},
		"purge":                 {{ctMap, "--yes"}, {unknown}},
		"clears release":        {ct, {unknown}},
		"clears restore":        {ct},
		"latency":               {{"--for", "1s"}},
		"scans pause":           {{"--for", "1s"}},
		"scans resume":          {nil},
		"reload":                {nil},
		"notify":                {nil, {"--on-ready", "echo", "--interval", "0s"}},
		"support-bundle":        {{"--file", filepath.Join(h.dir, unknown)}, {"--file", filepath.Join(h.dir, "bundle"), "--config", unknown}},
		"schema show":           {{object}, {filepath.Join(h.bpffs, ctMap)}, {unknown}, {object, "--map", unknown}},
		"schema export":         {{object}, {filepath.Join(h.bpffs, ctMap)}},
		"schema suggest":        {{object}, {filepath.Join(h.bpffs, ctMap)}, {unknown}, {filepath.Join(h.bpffs, ctMap), "--json"}},
		"profiles show":         {{"loxilb"}, {unknown}},
		"profiles check":        {{"calico"}, {"calico", "--json"}, {unknown}, {"/" + unknown}},
		"drain":                 {{"--timeout", "1s"}, {"--undo"}},
		"version":               {nil},
		"completion bash":       {nil},
		"completion fish":       {nil},
		"completion powershell": {nil},
		"completion zsh":        {nil},
	}
}

// TestNoCommandPrintsControlCharacters runs every command while peers, gossip members, observers, maps, interfaces, processes
// and files have hostile names and texts.
func TestNoCommandPrintsControlCharacters(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	h := newHostileHost(t)
	serveGossipError(t)
	logged := h.runDaemon()
	all := h.attack(logged)
	lines := h.commandLines()
	visited := make(map[string]bool)
	eachCommand(t, func(path []string, cmd *cobra.Command, _ []string) {
		name := strings.Join(path, " ")
		visited[name] = true
		if lines[name] == nil {
			t.Errorf("command %q: got no arguments in commandLines, want them", name)
		}
		for _, args := range lines[name] {
			h.check(all, path, cmd, args)
		}
	})
	for name := range lines {
		if !visited[name] {
			t.Errorf("command %q in commandLines: got no such command, want one", name)
		}
	}
	h.checkPages(all)
	wantPrintable(t, "log", logged.String())
	for _, tag := range []string{"dev", "pin", "comm", "refused", "inconclusive", "reason", "key", "missing", "observer", "argument", "gossip"} {
		if !strings.Contains(all.String(), tag) {
			t.Errorf("outputs: got no text with %q, want it printed", tag)
		}
	}
	for _, tag := range []string{"status", "owner", "source", "member", "hello", "certificate", "refused", "comm"} {
		if !regexp.MustCompile(tag + `\\+(u00|x)1b`).MatchString(logged.String()) {
			t.Errorf("log: got no text with %q, want it logged", tag)
		}
	}
	if !strings.Contains(all.String(), "é") {
		t.Error("outputs: got no é, want printable characters to stay")
	}
}

// attack starts the peers and waits until the daemon has their texts. It returns the outputs so far.
func (h *hostileHost) attack(logged *outputs) *outputs {
	h.Helper()
	all, client := &outputs{}, daemon.NewClient(h.socket())
	status := func(has func(*daemon.Status) bool) func() bool {
		return func() bool {
			s, err := client.Status(h.Context())
			return err == nil && has(&s)
		}
	}
	poll.Eventually(h.T, "the status has the error of gossip", status(func(s *daemon.Status) bool { return s.GossipProblem != "" }))
	_, text := h.command("status", "--control-socket", h.socket())
	_, _ = all.Write([]byte(text))
	peer := h.startPeer("lb2", "127.0.0.2", nil)
	peer.answer = peer.replicates
	breaker := h.startPeer("lb3", "127.0.0.3", nil)
	breaker.answer = breaker.breaks()
	h.startMember()
	names := testcert.Options{DNSNames: []string{"lb9", "certificate\x1b]0;\a\n" + forged}}
	h.subscribe(h.tls("lb8", names), &mapsyncv1.Hello{Self: &mapsyncv1.Incarnation{Node: "lb8", Number: 1}}, false)
	h.subscribe(h.tls("lb9", testcert.Options{}), &mapsyncv1.Hello{Self: &mapsyncv1.Incarnation{Node: hostile("hello"), Number: 1}}, false)
	h.subscribe(h.tls("observer", testcert.Options{}), &mapsyncv1.Hello{Self: &mapsyncv1.Incarnation{Node: "observer", Number: 1}}, true)
	poll.Eventually(h.T, "both peers are live", status(func(s *daemon.Status) bool { return len(s.Peers) == 2 }))
	peer.report()
	h.replaceFormer()
	poll.Eventually(h.T, "the status has all texts", status(func(s *daemon.Status) bool {
		p := &s.Peers[0]
		of := func(name string) *daemon.PeerMapStatus {
			return &p.Maps[slices.IndexFunc(p.Maps, func(m daemon.PeerMapStatus) bool { return m.Name == name })]
		}
		return strings.Contains(of(ctMap).Incomparable, "inconclusive") && of(ctMap).Refused > 0 && of(ctMap).Report != nil && of(otherMap).Error != "" &&
			s.Maps[0].Unsent > 0 && len(s.Maps[1].FormerUsers) > 0 && len(s.Observers) == 1
	}), func() any {
		s, err := client.Status(h.Context())
		return fmt.Sprintf("%+v %+v %v", s.Peers, s.Observers, err)
	})
	poll.Eventually(h.T, "the log has all texts", func() bool {
		return strings.Contains(logged.String(), "source") && strings.Contains(logged.String(), "certificate")
	}, func() any { return logged })
	return all
}

// check runs a command as text and as JSON, and checks its outputs. It adds them to all.
func (h *hostileHost) check(all *outputs, path []string, cmd *cobra.Command, args []string) {
	line := slices.Concat(path, args)
	if cmd.Flags().Lookup("control-socket") != nil && path[0] != "run" && path[0] != "check" {
		line = append(line, "--control-socket", h.socket())
	}
	if path[0] == "watch" {
		defer h.keepChanging()()
	}
	what := fmt.Sprintf("syncd %q", line)
	_, text := h.command(line...)
	wantPrintable(h.T, what, text)
	_, _ = io.WriteString(all, text)
	if cmd.Flags().Lookup("json") == nil || slices.Contains(args, "--raw") {
		return
	}
	out, text := h.command(append(line, "--json")...)
	wantPrintable(h.T, what+" --json", text)
	_, _ = io.WriteString(all, text)
	var value any
	decoder := json.NewDecoder(strings.NewReader(out))
	for err := error(nil); !errors.Is(err, io.EOF); {
		if err = decoder.Decode(&value); err != nil && !errors.Is(err, io.EOF) {
			h.Fatalf("%s --json: got error %v, want JSON: %q", what, err, out)
		}
	}
}

// checkPages checks the pages for operators, which tools print as they are. It adds them to all.
func (h *hostileHost) checkPages(all *outputs) {
	h.Helper()
	for _, path := range []string{"/readyz", "/readyz?verbose", "/metrics"} {
		response, err := http.Get("http://" + daemonMetrics + path)
		if err != nil {
			h.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			h.Fatal(err)
		}
		wantPrintable(h.T, path, string(text))
		_, _ = all.Write(text)
	}
}

// keepChanging changes an entry of ctMap until stop is called.
func (h *hostileHost) keepChanging() (stop func()) {
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := uint64(2); ; n++ {
			select {
			case <-ended:
				return
			default:
				if err := h.ct.Put(make([]byte, 16), n); err != nil {
					h.Error(err)
					return
				}
			}
		}
	}()
	return func() { close(ended); <-stopped }
}

// TestLogIsPrintable checks both formats of the log.
func TestLogIsPrintable(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log := newLogger(printable.NewWriter(&out), &config.Config{LogLevel: "info", LogFormat: format}, new(slog.LevelVar))
		record := slog.NewRecord(time.Now(), slog.LevelWarn, hostile("message"), 0)
		record.Add(hostile("key"), hostile("value"), "error", errors.New(hostile("error")), "bytes", []byte("\x1b\xff"))
		if err := log.Handler().Handle(t.Context(), record); err != nil {
			t.Fatal(err)
		}
		wantPrintable(t, format, out.String())
		if n := strings.Count(out.String(), "\n"); n != 1 {
			t.Errorf("%s: got %d lines, want 1: %q", format, n, out.String())
		}
		if format == "json" && !json.Valid(out.Bytes()) {
			t.Errorf("json: got %q, want valid JSON", out.String())
		}
	}
}
