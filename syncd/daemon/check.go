package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"mapsync/peers"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/privilege"

	"github.com/cilium/ebpf"
)

// Severity is the severity of a Finding.
type Severity string

// The severities. With an error, syncd does not start or refuses a map. A warning may be
// intentional, or may be resolved before the start.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

// Finding is one problem of the settings.
type Finding struct {
	Severity Severity `json:"severity"`
	Setting  string   `json:"setting,omitempty"` // empty: the settings as a whole
	Problem  string   `json:"problem"`
}

// checker collects findings.
type checker struct {
	config   *config.Config
	found    []Finding
	seesUses func(ebpf.MapType) error // nil: not probed yet
	only     []string                 // names of the maps to check; nil: all
}

// CheckMaps is Check for some maps of the settings: their types, fields and entries. names are those of the maps.
func CheckMaps(c *config.Config, names []string) []Finding {
	k := &checker{config: c, found: []Finding{}, only: names}
	k.fail("", c.ValidateMaps())
	refused := privilege.AllowBPF()
	k.fail("", refused)
	k.checkMaps(refused == nil)
	return k.found
}

// Check returns the problems of settings on this host, with the privileges of this process: values, files, certificates, keys,
// addresses, ports, peers, and maps with their types. It starts and changes nothing. A daemon that Run starts with the same
// privileges fails, or has the problem, for each finding of severity error.
func Check(ctx context.Context, c *config.Config) []Finding {
	k := &checker{config: c, found: []Finding{}}
	k.fail("", c.Validate())
	k.fail("buffer-size", checkBuffer(c))
	if _, err := c.ScanCPUSet(); err == nil { // otherwise Validate has reported it
		_, err = scanCPUs(c)
		k.fail("scan-cpus", err)
	}
	refused := privilege.AllowBPF()
	k.fail("", refused)
	k.checkMaps(refused == nil)
	k.checkCredentials()
	k.checkGossip()
	k.checkFiles()
	k.checkPorts(ctx)
	k.checkPeers(ctx)
	return k.found
}

// fail adds one finding of severity error for each error that err joins. It ignores nil, and what another check has found.
func (k *checker) fail(setting string, err error) {
	if err == nil {
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, each := range joined.Unwrap() {
			k.fail(setting, each)
		}
		return
	}
	if f := (Finding{SeverityError, setting, err.Error()}); !slices.Contains(k.found, f) {
		k.found = append(k.found, f)
	}
}

func (k *checker) warn(setting, format string, args ...any) {
	k.found = append(k.found, Finding{SeverityWarning, setting, fmt.Sprintf(format, args...)})
}

func (k *checker) checkCredentials() {
	c := k.config
	if !c.TLS() {
		return
	}
	credentials, err := peers.NewCredentials(credentialsOptions(c))
	if err != nil {
		k.fail("tls-cert", err)
		return
	}
	settings := map[string]string{c.TLSCert: "tls-cert", c.TLSKey: "tls-key", c.TLSCA: "tls-ca", c.TLSCRL: "tls-crl"}
	for _, a := range credentials.Advice() {
		k.warn(settings[a.File], "%s: %s: %s", a.File, a.Problem, a.Hint)
	}
}

// checkBuffer returns an error if the buffer cannot have the configured size.
func checkBuffer(c *config.Config) error {
	if c.BufferSize == 0 {
		return nil
	}
	if err := capture.CheckBufferSize(capture.Buffer(c.Buffer), c.BufferSize); err != nil {
		return fmt.Errorf("buffer-size: %w", err)
	}
	return nil
}

// checkGossip checks gossip keys and addresses as the daemon does at its start.
func (k *checker) checkGossip() {
	c := k.config
	keys, err := readGossipKeys(c.GossipKeyFile, slog.New(slog.DiscardHandler))
	k.fail("gossip-key-file", err)
	if k.fail("", checkExposure(c)); c.Standalone() {
		return // it uses neither gossip nor addresses
	}
	if info, err := os.Stat(c.GossipKeyFile); err == nil && readableByOthers(info) {
		k.warn("gossip-key-file", "%s can be read by others: chmod 600 it", c.GossipKeyFile)
	}
	service := c.GRPCAdvertise
	if service == "" {
		service = strings.TrimSuffix(c.GRPCListen, ":0")
		if service != c.GRPCListen {
			service += ":1" // the kernel chooses a port at the start
		}
	}
	k.fail("", peers.Options{
		NodeName: c.NodeName, Incarnation: 1, BindAddr: c.GossipListen, AdvertiseAddr: c.GossipAdvertise,
		Join: c.Join, GossipKeys: keys, ServiceAddr: service, DeadTime: c.DeadTime,
	}.Check())
}
