package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mapsync/peers"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"

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

// lookupTimeout bounds the resolution of each host name.
const lookupTimeout = 2 * time.Second

// checker collects findings.
type checker struct {
	config   *config.Config
	found    []Finding
	seesUses func(ebpf.MapType) error // nil: not probed yet
}

// Check returns the problems of settings: values, files, certificates, keys, addresses and maps.
// It starts and changes nothing. It opens kernel maps to read their sizes. A map that this
// process has no permission to open is a warning.
func Check(c *config.Config) []Finding {
	k := &checker{config: c, found: []Finding{}}
	k.fail("", c.Validate())
	k.fail("buffer-size", checkBuffer(c))
	if _, err := c.ScanCPUSet(); err == nil { // otherwise Validate has reported it
		_, err = scanCPUs(c)
		k.fail("scan-cpus", err)
	}
	k.checkMaps()
	k.checkCredentials()
	k.checkGossip()
	k.checkFiles()
	k.checkBound()
	return k.found
}

// fail adds one finding of severity error for each error that err joins. It ignores nil.
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
	k.found = append(k.found, Finding{SeverityError, setting, err.Error()})
}

func (k *checker) warn(setting, format string, args ...any) {
	k.found = append(k.found, Finding{SeverityWarning, setting, fmt.Sprintf(format, args...)})
}

// checkMaps checks the settings of maps, and the kernel maps that exist.
func (k *checker) checkMaps() {
	fields, err := ParseFields(k.config.Fields)
	k.fail("field", err)
	owners, err := userIDs(k.config.PinOwners)
	k.fail("pin-owner", err)
	var list []*replica
	ids := make(map[uint32]string)
	for _, s := range k.config.Maps {
		m, err := config.ParseMap(s)
		if err != nil {
			continue // Validate has reported it
		}
		list = append(list, &replica{name: m.Name})
		ref, err := kmap.ParseRef(m.Ref)
		if err != nil {
			k.fail("map", err)
			continue
		}
		k.checkMap(m.Name, ref, owners, ids)
	}
	k.fail("field", checkFields(fields, namesOf(list)))
	k.fail("schema", schemaFiles(list, k.config.Schemas))
	for _, m := range list {
		if m.schemaFile != "" {
			k.checkSchema(m)
		}
	}
}

// checkMap checks one kernel map. ids holds the names of the maps checked before, by kernel map
// id.
func (k *checker) checkMap(name string, ref kmap.Ref, owners []uint32, ids map[uint32]string) {
	m, err := kmap.Resolve(ref, owners...)
	switch {
	case errors.Is(err, kmap.ErrNotFound):
		k.warn("map", "%s: no such kernel map yet, syncd waits for it", name)
		return
	case errors.Is(err, kmap.ErrPinRefused), errors.Is(err, kmap.ErrAmbiguous):
		k.fail("map", fmt.Errorf("%s: %w", name, err))
		return
	case err != nil:
		k.warn("map", "%s: not checked: %v", name, err)
		return
	}
	defer m.Close()
	info, err := kmap.Describe(m)
	if err != nil {
		k.warn("map", "%s: not checked: %v", name, err)
		return
	}
	if other, ok := ids[info.ID]; ok {
		k.fail("map", fmt.Errorf("%s: %w: map %s uses it", name, errDuplicate, other))
	}
	ids[info.ID] = name
	if info.Unsupported != nil {
		k.fail("map", fmt.Errorf("%s: %w", name, info.Unsupported))
		return
	}
	if err := refuseDeletes(k.config, name, &info); err != nil {
		k.fail("deletes", fmt.Errorf("%s: %w", name, err))
	}
	s, err := SchemaOf(name, info)
	if err := refuseTimers(k.config, name, err == nil && s.Timers() != nil); err != nil {
		k.fail("takeover-expiry", fmt.Errorf("%s: %w", name, err))
	}
	if k.hasSchemaFile(name) || err != nil {
		s = nil
	}
	k.checkUses(name, &info, s)
}

// hasSchemaFile reports whether the settings name a file with the types of a map.
func (k *checker) hasSchemaFile(name string) bool {
	return slices.ContainsFunc(k.config.Schemas, func(s string) bool {
		of, _, err := config.ParseSchema(s)
		return err == nil && of == name
	})
}

// checkUses checks that syncd sees which entries of a map are in use, if they expire after a takeover. s is nil if the
// types are unknown here.
func (k *checker) checkUses(name string, info *kmap.Info, s *schema.Schema) {
	if k.seesUses == nil && k.config.WatchesUses(name) {
		tick, err := kmap.TickLength()
		if err == nil {
			k.seesUses, err = capture.ProbeUses(capture.Attach(k.config.Attach), tick)
		}
		if err != nil {
			k.warn("takeover-expiry", "%s: not checked whether syncd sees which entries are in use: %v", name, err)
			k.seesUses = func(ebpf.MapType) error { return nil }
		}
	}
	if err := refuseUnseenUses(k.config, name, info.Type, s, k.seesUses); err != nil {
		k.fail("takeover-expiry", fmt.Errorf("%s: %w", name, err))
	}
}

func (k *checker) checkSchema(m *replica) {
	list, err := schema.FromObject(m.schemaFile)
	for _, s := range list {
		if s.Map == m.name {
			return
		}
	}
	if err != nil {
		k.fail("schema", fmt.Errorf("%s: %w", m.name, err))
		return
	}
	k.warn("schema", "%s: %s has no hash map of that name; one with the kernel map's name is used if there is one", m.name, m.schemaFile)
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
	for _, addr := range c.Join {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			continue // Options.Check has reported it
		}
		ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
		if _, err := net.DefaultResolver.LookupHost(ctx, host); err != nil {
			k.warn("join", "%s cannot be resolved now: %v", addr, err)
		}
		cancel()
	}
}

// checkFiles checks the paths that syncd writes to.
func (k *checker) checkFiles() {
	c := k.config
	if info, err := os.Lstat(c.ControlSocket); err == nil && info.Mode().Type() != fs.ModeSocket {
		k.fail("control-socket", fmt.Errorf("%s exists and is not a socket (%s)", c.ControlSocket, info.Mode()))
	}
	const longest = 107 // bytes of sun_path, without the final zero
	if len(c.ControlSocket) > longest {
		k.fail("control-socket", fmt.Errorf("the path has %d bytes, a unix socket's at most %d", len(c.ControlSocket), longest))
	}
	if info, err := os.Stat(c.StateDir); err == nil && !info.IsDir() {
		k.warn("state-dir", "%s is not a directory: after a restart syncd treats its maps as new", c.StateDir)
	}
	path := filepath.Join(c.StateDir, c.NodeName+".state.json")
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		k.warn("state-dir", "%s is not a regular file (%s): it is replaced at the start", path, info.Mode())
	}
}

// checkBound warns about listen addresses that this host does not have.
func (k *checker) checkBound() {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return
	}
	for _, setting := range []struct{ name, addr string }{
		{"gossip-listen", k.config.GossipListen}, {"grpc-listen", k.config.GRPCListen}, {"metrics-listen", k.config.MetricsListen},
	} {
		addr, err := netip.ParseAddrPort(setting.addr)
		if err != nil || addr.Addr().IsUnspecified() || addr.Addr().IsLoopback() {
			continue
		}
		found := false
		for _, a := range own {
			found = found || strings.HasPrefix(a.String(), addr.Addr().WithZone("").String()+"/")
		}
		if !found {
			k.warn(setting.name, "no interface of this host has the address %s now", addr.Addr())
		}
	}
}
