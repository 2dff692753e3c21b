// Package scripts tests the scripts for users.
package scripts

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/peers"
)

// makeCredentials runs the script and returns its output and its exit code. It skips the test only if
// openssl is missing.
func makeCredentials(t *testing.T, args ...string) (output string, code int) {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is missing: scripts/install-deps test")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "./make-credentials", args...).CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("make-credentials %q: %v\n%s", args, err, out)
	}
	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out), 0
}

// create runs the script, which must succeed, and returns its output.
func create(t *testing.T, args ...string) string {
	t.Helper()
	out, code := makeCredentials(t, args...)
	if code != 0 {
		t.Fatalf("make-credentials %q: exit code %d\n%s", args, code, out)
	}
	return out
}

func credentials(t *testing.T, dir, node string) *peers.Credentials {
	t.Helper()
	c, err := peers.NewCredentials(peers.CredentialsOptions{
		CertFile: filepath.Join(dir, node+".crt"), KeyFile: filepath.Join(dir, node+".key"),
		CAFile: filepath.Join(dir, "ca.crt"), NodeName: node,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func certificate(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	if err != nil {
		t.Fatal(err)
	}
	block, rest := pem.Decode(data)
	if block == nil || len(rest) > 0 {
		t.Fatalf("%s.crt: want one PEM block\n%s", name, data)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// contents returns the contents of all files of a directory, by name.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(data)
	}
	return files
}

func TestCredentialsOfNewCluster(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "credentials")
	create(t, "--dir", dir, "lb1", "lb2.example.org", "10.0.0.1")
	modes := map[string]fs.FileMode{
		"ca.crt": 0o644, "ca.key": 0o600, "gossip.key": 0o600, "lb1.crt": 0o644, "lb1.key": 0o600,
		"lb2.example.org.crt": 0o644, "lb2.example.org.key": 0o600, "10.0.0.1.crt": 0o644, "10.0.0.1.key": 0o600,
	}
	for name := range contents(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != modes[name] {
			t.Errorf("%s: got mode %v, error %v, want %v", name, info.Mode(), err, modes[name])
		}
		delete(modes, name)
	}
	if len(modes) > 0 {
		t.Errorf("files %v are missing", modes)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: got %v, error %v, want mode 0700", info, err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "gossip.key"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(string(key), "\n"))
	if err != nil || len(raw) != 32 || peers.CheckGossipKey(raw) != nil {
		t.Errorf("gossip key: got %d bytes, error %v, want 32", len(raw), err)
	}
}

func TestCertificatesHaveTheirUsages(t *testing.T) {
	dir := t.TempDir()
	create(t, "--dir", dir, "--days", "30", "--ca-days", "60", "lb1", "10.0.0.1")
	ca, node, address := certificate(t, dir, "ca"), certificate(t, dir, "lb1"), certificate(t, dir, "10.0.0.1")
	if !ca.IsCA || ca.KeyUsage != x509.KeyUsageCertSign|x509.KeyUsageCRLSign {
		t.Errorf("CA: got IsCA %v, key usage %b, want true and %b", ca.IsCA, ca.KeyUsage, x509.KeyUsageCertSign|x509.KeyUsageCRLSign)
	}
	if node.IsCA || node.KeyUsage != x509.KeyUsageDigitalSignature ||
		!slices.Equal(node.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}) {
		t.Errorf("node: got IsCA %v, key usage %b, extended %v, want false, %b and server and client authentication",
			node.IsCA, node.KeyUsage, node.ExtKeyUsage, x509.KeyUsageDigitalSignature)
	}
	if !slices.Equal(node.DNSNames, []string{"lb1"}) || len(node.IPAddresses) > 0 {
		t.Errorf("node: got names %v %v, want lb1", node.DNSNames, node.IPAddresses)
	}
	if len(address.DNSNames) > 0 || len(address.IPAddresses) != 1 || address.IPAddresses[0].String() != "10.0.0.1" {
		t.Errorf("node with an address: got names %v %v, want 10.0.0.1", address.DNSNames, address.IPAddresses)
	}
	for cert, days := range map[*x509.Certificate]time.Duration{ca: 60, node: 30} {
		if got := cert.NotAfter.Sub(cert.NotBefore); got != days*24*time.Hour {
			t.Errorf("%s: got validity %v, want %d days", cert.Subject, got, days)
		}
	}
	if node.SerialNumber.Cmp(address.SerialNumber) == 0 {
		t.Errorf("two certificates have the serial number %v", node.SerialNumber)
	}
}

// Nodes of two calls accept each other, and a node of another CA does not.
func TestNodesAcceptEachOther(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	create(t, "--dir", dir, "lb1")
	create(t, "--dir", dir, "lb2")
	create(t, "--dir", other, "lb3")
	one, two, three := credentials(t, dir, "lb1"), credentials(t, dir, "lb2"), credentials(t, other, "lb3")
	if err := handshake(t, one, two, "lb2"); err != nil {
		t.Errorf("lb1 to lb2: %v", err)
	}
	if err := handshake(t, two, one, "lb1"); err != nil {
		t.Errorf("lb2 to lb1: %v", err)
	}
	if err := handshake(t, one, three, "lb3"); err == nil {
		t.Error("lb1 to lb3 of another CA: got no error, want an error")
	}
}

// handshake connects a client to a server, which must have the given name.
func handshake(t *testing.T, client, server *peers.Credentials, name string) error {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			defer conn.Close()
			if conn, _, err = server.Server().ServerHandshake(conn); err == nil {
				_, err = conn.Write([]byte("hello\n"))
			}
		}
		done <- err
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	secured, _, err := client.Client(name).ClientHandshake(ctx, name, conn)
	if err == nil {
		_, err = bufio.NewReader(secured).ReadString('\n')
	}
	conn.Close()
	<-done
	return err
}

func TestExistingFilesAreKept(t *testing.T) {
	dir := t.TempDir()
	create(t, "--dir", dir, "lb1", "lb2")
	before := contents(t, dir)
	out := create(t, "--dir", dir, "lb1", "lb2")
	if after := contents(t, dir); len(after) != len(before) {
		t.Errorf("files: got %d, want %d", len(after), len(before))
	}
	for name, data := range contents(t, dir) {
		if data != before[name] {
			t.Errorf("%s was replaced", name)
		}
	}
	if strings.Contains(out, "created") || strings.Count(out, "kept") != 4 {
		t.Errorf("output: got\n%s\nwant four kept files", out)
	}
	create(t, "--dir", dir, "--renew", "lb1")
	for name, data := range contents(t, dir) {
		if renewed := strings.HasPrefix(name, "lb1."); (data != before[name]) != renewed {
			t.Errorf("%s: replaced %v, want %v", name, !renewed, renewed)
		}
	}
	credentials(t, dir, "lb1")
}

func TestWrongUseHasRemedy(t *testing.T) {
	dir := t.TempDir()
	for want, args := range map[string][]string{
		"no node is given":                    {},
		"unknown option --force":              {"--force", "lb1"},
		"--dir needs a value":                 {"lb1", "--dir"},
		"--days 0 is not a number of days":    {"--days", "0", "lb1"},
		"--ca-days -1 is not a number":        {"--ca-days", "-1", "lb1"},
		"--ca-days 10 is smaller than --days": {"--ca-days", "10", "lb1"},
		"node name 'a b' is not usable":       {"a b"},
		"node name '../a' is not usable":      {"../a"},
		"node name 'a..b' is not usable":      {"a..b"},
		"node name 'ca' is the name":          {"ca"},
		"node name 'gossip' is the name":      {"lb1", "gossip"},
		"node name 'fe80::1' is not usable":   {"fe80::1"},
		"node name '10.0.0.256' is not an":    {"10.0.0.256"},
		"node name '10.0.0.01' is not an":     {"lb1", "10.0.0.01"},
	} {
		out, code := makeCredentials(t, append([]string{"--dir", dir}, args...)...)
		if code != 2 || !strings.Contains(out, want) || !strings.Contains(out, "--help lists the arguments") {
			t.Errorf("%q: got exit code %d, output %q, want 2 and %q", args, code, out, want)
		}
	}
	if files := contents(t, dir); len(files) > 0 {
		t.Errorf("files after wrong use: %v, want none", files)
	}
}

func TestUnusableDirectoriesHaveRemedy(t *testing.T) {
	path := func(dir, name string) string { return filepath.Join(dir, name) }
	for want, damage := range map[string]func(dir string) error{
		"exists without ca.key: copy ca.key": func(dir string) error { return os.Remove(path(dir, "ca.key")) },
		"exists without ca.crt: copy ca.crt": func(dir string) error { return os.Remove(path(dir, "ca.crt")) },
		"is not a certificate in PEM":        func(dir string) error { return os.WriteFile(path(dir, "ca.crt"), []byte("x"), 0o600) },
		"is not the key of ca.crt":           func(dir string) error { return os.Rename(path(dir, "lb1.key"), path(dir, "ca.key")) },
		"is not the key of lb1.crt: add --renew": func(dir string) error {
			create(t, "--dir", dir, "lb2")
			return os.Rename(path(dir, "lb2.key"), path(dir, "lb1.key"))
		},
		"only one of lb1.crt and lb1.key: add --renew": func(dir string) error {
			return os.Remove(path(dir, "lb1.key"))
		},
		"lb1.crt has expired, or the CA": func(dir string) error {
			other := t.TempDir()
			create(t, "--dir", other, "lb1")
			return os.Rename(path(other, "lb1.crt"), path(dir, "lb1.crt"))
		},
	} {
		dir := t.TempDir()
		create(t, "--dir", dir, "lb1")
		if err := damage(dir); err != nil {
			t.Fatal(err)
		}
		before := contents(t, dir)
		out, code := makeCredentials(t, "--dir", dir, "lb1")
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("damaged credentials: got exit code %d, want 1 with %q in the output:\n%s", code, want, out)
		}
		for name, data := range contents(t, dir) {
			if data != before[name] {
				t.Errorf("%s: %s was changed", want, name)
			}
		}
	}
	dir := t.TempDir()
	create(t, "--dir", dir, "--ca-days", "20", "--days", "10", "lb1")
	if out, code := makeCredentials(t, "--dir", dir, "--days", "30", "lb2"); code != 1 || !strings.Contains(out, "choose a smaller --days") {
		t.Errorf("a certificate beyond the end of the CA: got exit code %d, want 1 with \"choose a smaller --days\" in the output:\n%s",
			code, out)
	}
}

// TestDirectoryThatLooksLikeAnOption checks that a directory whose name begins with "-" is not taken
// for an option of another program.
func TestDirectoryThatLooksLikeAnOption(t *testing.T) {
	script, err := filepath.Abs("make-credentials")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), script, "--dir", "-r ' $x", "lb1")
	cmd.Dir = t.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make-credentials: %v\n%s", err, out)
	}
	credentials(t, filepath.Join(cmd.Dir, "-r ' $x"), "lb1")
}

func TestHelpHasExamples(t *testing.T) {
	out := create(t, "--help")
	script, err := os.ReadFile("make-credentials")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, "set -euo") || !strings.HasSuffix(out, "# an observer\n") {
		t.Errorf("help: got\n%s\nwant the comment at the start of the script", out)
	}
	for line := range strings.Lines(string(script)) {
		if option, _, found := strings.Cut(strings.TrimSpace(line), ")"); found && strings.HasPrefix(option, "--") &&
			!strings.Contains(option, "|") && !strings.Contains(out, "  "+option+" ") {
			t.Errorf("help: option %s is missing", option)
		}
	}
	for line := range strings.Lines(out[strings.Index(out, "Examples:"):]) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		t.Run(strings.Join(words[1:], " "), func(t *testing.T) {
			for i, word := range words {
				if word == "#" {
					words = words[:i]
					break
				}
				if word == "credentials" {
					words[i] = t.TempDir()
				}
			}
			create(t, words[1:]...)
		})
	}
}
