// Package config defines the settings of the daemon: their defaults, their flags, their keys in
// the YAML file and their validation. Each setting has one name, the same on the command line and
// in the file. Only metrics is in the file alone.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"mapsync/printable"
)

// Config holds all settings. Durations are written like "30s".
type Config struct {
	Profiles     []string `yaml:"profile"`      // names, or paths of files
	OptionalMaps []string `yaml:"optional-map"` // names of maps that may be absent
	EntrySizes   []string `yaml:"entry-size"`   // MAP=KEY+VALUE, in bytes

	Maps       []string `yaml:"map"`
	Referenced []string `yaml:"referenced-map"` // maps of which fields have ids
	Attach     string   `yaml:"attach"`
	Buffer     string   `yaml:"buffer"`
	BufferSize int      `yaml:"buffer-size"`
	Schemas    []string `yaml:"schema"`
	Fields     []string `yaml:"field"`
	// StrictRoles keeps a node from becoming ready while a field seems to need a role.
	StrictRoles bool `yaml:"strict-roles"`

	NodeName        string   `yaml:"node-name"`
	Join            []string `yaml:"join"`
	GossipListen    string   `yaml:"gossip-listen"`
	GossipAdvertise string   `yaml:"gossip-advertise"`
	GossipKeyFile   string   `yaml:"gossip-key-file"`
	GRPCListen      string   `yaml:"grpc-listen"`
	GRPCAdvertise   string   `yaml:"grpc-advertise"`
	TLSCert         string   `yaml:"tls-cert"`
	TLSKey          string   `yaml:"tls-key"`
	TLSCA           string   `yaml:"tls-ca"`
	Insecure        bool     `yaml:"insecure"`
	TLSCRL          string   `yaml:"tls-crl"`
	AllowedNames    []string `yaml:"allowed-names"`
	Observers       []string `yaml:"observers"`
	ReadFrom        []string `yaml:"read-from"`
	WriteFrom       []string `yaml:"write-from"`
	MaxConnections  int      `yaml:"max-connections"`
	MemoryLimit     string   `yaml:"memory-limit"`

	Cluster           string   `yaml:"cluster"`
	ExpectedPeers     PeerList `yaml:"expected-peers"`
	RedundancyShare   float64  `yaml:"redundancy-share"` // percent of this node's entries
	AllowUnservedMaps bool     `yaml:"allow-unserved-maps"`

	DeadTime        time.Duration `yaml:"dead-time"`
	SyncTimeout     time.Duration `yaml:"sync-timeout"`
	OnReadyTimeout  string        `yaml:"on-ready-timeout"`
	EndDrainAtStart bool          `yaml:"end-drain-at-start"`
	TombstoneTTL    time.Duration `yaml:"tombstone-ttl"`
	MaxClockAhead   time.Duration `yaml:"max-clock-ahead"`
	Deletes         []string      `yaml:"deletes"` // MAP=owner or MAP=any
	NewMap          []string      `yaml:"new-map"` // MAP=table or MAP=map; the default follows deletes
	Clears          []string      `yaml:"clears"`  // MAP=hold or MAP=replicate
	EvictionDeletes bool          `yaml:"eviction-deletes"`
	MaxTombstones   int           `yaml:"max-tombstones"` // 0: twice the map's maximum entries, at least 65536
	RecordsFactor   float64       `yaml:"max-records-factor"`
	EvictedTTL      time.Duration `yaml:"evicted-ttl"`
	MaxEvicted      int           `yaml:"max-evicted"` // 0: the map's maximum entries

	ScanInterval    time.Duration `yaml:"scan-interval"`
	MaxScanInterval time.Duration `yaml:"max-scan-interval"` // 0: LongestScanInterval, LongestCostlyScanInterval
	ScanBudget      float64       `yaml:"scan-budget"`       // percent of one core
	ScanCPUs        string        `yaml:"scan-cpus"`         // a list like 2-3,8; empty: any CPU
	InPlace         []string      `yaml:"in-place"`          // MAP=hook or MAP=scan
	RefreshInterval time.Duration `yaml:"refresh-interval"`

	TakeoverExpiries []string `yaml:"takeover-expiry"` // MAP=DURATION, MAP=DURATION:FIELD or MAP=never

	DrainSumsMaps       []string      `yaml:"drain-sums"` // names of maps
	DrainSumsTTL        time.Duration `yaml:"drain-sums-ttl"`
	DrainSumsMaxEntries int           `yaml:"drain-sums-max-entries"` // of this node; 0: twice the map's maximum entries

	Metrics []EntryMetrics `yaml:"metrics"` // only in the file

	MetricsListen string   `yaml:"metrics-listen"`
	ControlSocket string   `yaml:"control-socket"`
	StateDir      string   `yaml:"state-dir"`
	PinOwners     []string `yaml:"pin-owner"`
	PinDir        string   `yaml:"pin-dir"` // of syncd's own pins; empty: none
	LogLevel      string   `yaml:"log-level"`
	LogFormat     string   `yaml:"log-format"`
}

// DefaultControlSocket is the unix socket on which a daemon serves the other subcommands by
// default.
const DefaultControlSocket = "/run/mapsync/syncd.sock"

// The values of the setting on-ready-timeout.
const (
	ReadyOpen   = "open"
	ReadyClosed = "closed"
)

// Default returns the default settings. The node name is the host name, or empty if the kernel
// does not return one.
func Default() Config {
	host, err := os.Hostname()
	if err != nil {
		host = "" // Validate reports an empty node name
	}
	return Config{
		Attach: "auto", Buffer: "ring",
		NodeName:     host,
		GossipListen: "127.0.0.1:7946", GRPCListen: "127.0.0.1:7947",
		DeadTime: 4 * time.Second, SyncTimeout: 30 * time.Second, OnReadyTimeout: ReadyClosed, TombstoneTTL: 15 * time.Minute, EvictedTTL: 15 * time.Minute, RecordsFactor: 2, MaxClockAhead: time.Minute,
		MaxConnections: DefaultMaxConnections, RedundancyShare: 99,
		ScanInterval: 10 * time.Second, ScanBudget: 5, RefreshInterval: 10 * time.Second,
		MetricsListen: "127.0.0.1:9746",
		ControlSocket: DefaultControlSocket, StateDir: "/run/mapsync", PinDir: DefaultPinDir,
		DrainSumsTTL: DefaultDrainSumsTTL,
		LogLevel:     "info", LogFormat: "text",
	}
}

// The defaults of max-scan-interval, as multiples of scan-interval: usually, and for maps whose scans are costly.
const scanIntervalFactor, costlyScanIntervalFactor = 4, 16

// LongestScanInterval returns the longest time between two scans of a map that does not change, if its scans are not
// costly.
func (c *Config) LongestScanInterval() time.Duration {
	return cmp.Or(c.MaxScanInterval, scanIntervalFactor*c.ScanInterval)
}

// LongestCostlyScanInterval returns the same for a map whose scans need more than 1 % of a core at
// LongestScanInterval.
func (c *Config) LongestCostlyScanInterval() time.Duration {
	return cmp.Or(c.MaxScanInterval, costlyScanIntervalFactor*c.ScanInterval)
}

// Map is one entry of the setting map: [NAME=]REF.
type Map struct {
	Name string // name of the map among the peers
	Ref  string // the kernel map: name:N, pin:PATH or id:ID
}

// mapName matches the names that a map may have on the wire, in metrics and in commands.
var mapName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// ParseMap parses one entry of the setting map. REF[KEY] is an inner map of a map of maps. The default of NAME
// is the kernel's name of the map or the last part of its pin path. An id and an inner map need a NAME.
func ParseMap(s string) (Map, error) {
	m := Map{Ref: s}
	if name, ref, ok := strings.Cut(s, "="); ok && mapName.MatchString(name) {
		m.Name, m.Ref = name, ref
	}
	kind, rest, ok := strings.Cut(m.Ref, ":")
	switch {
	case strings.HasPrefix(m.Ref, "/"):
		kind, rest = "pin", m.Ref
	case !ok:
		kind, rest = "name", m.Ref
	}
	if rest == "" || !slices.Contains([]string{"name", "pin", "id"}, kind) {
		return Map{}, fmt.Errorf("map %q: write [NAME=]REF with REF name:N, pin:PATH or id:ID, or NAME=REF[KEY] for an inner map", s)
	}
	if kind == "pin" {
		rest = path.Clean(rest) // one spelling of each path, so that duplicates are found
	}
	m.Ref = kind + ":" + rest
	if m.Name == "" {
		if strings.HasSuffix(rest, "]") {
			return Map{}, fmt.Errorf("map %q: an inner map has no name of its own, so write NAME=%s", s, m.Ref)
		}
		if kind == "id" {
			return Map{}, fmt.Errorf("map %q: an id differs on every node, so write NAME=%s", s, m.Ref)
		}
		m.Name = rest[strings.LastIndex(rest, "/")+1:]
	}
	if !mapName.MatchString(m.Name) {
		return Map{}, fmt.Errorf("map %q: name %q is not usable: letters, digits, '_', '.' and '-', at most 64", s, m.Name)
	}
	return m, nil
}

// Level returns the log level; info if LogLevel is none, which Validate refuses.
func (c *Config) Level() slog.Level {
	var level slog.Level
	if level.UnmarshalText([]byte(c.LogLevel)) != nil {
		return slog.LevelInfo
	}
	return level
}

// ValidateMaps is Validate for the settings of maps only.
func (c *Config) ValidateMaps() error {
	return errors.Join(c.validateMaps(), c.validateOptional(), c.validateSchemas(), c.validateInPlace(), c.validateDeletes(), c.validateNewMap(),
		c.validateClears(), c.validateTakeoverExpiry(), c.validateDrainSums(), c.validateMetrics())
}

// Validate returns an error that joins all problems of the settings, each with a remedy, or nil.
func (c *Config) Validate() error {
	errs := []error{c.ValidateMaps(), c.validateAddresses(), c.validateListeners(), c.validateTLS(), c.validateLimits(), c.validateTrust(), c.validateCluster()}
	oneOf := func(name, value string) {
		if !slices.Contains(choices[name], value) {
			errs = append(errs, fmt.Errorf("%s %q is unknown: choose %s", name, value, strings.Join(choices[name], ", ")))
		}
	}
	oneOf("attach", c.Attach)
	oneOf("buffer", c.Buffer)
	oneOf("on-ready-timeout", c.OnReadyTimeout)
	oneOf("log-level", c.LogLevel)
	oneOf("log-format", c.LogFormat)
	if c.BufferSize < 0 {
		errs = append(errs, fmt.Errorf("buffer-size %d is negative", c.BufferSize))
	}
	if !usableNode(c.NodeName) {
		errs = append(errs, fmt.Errorf("node-name %q is not usable: give 1 to 128 bytes of printable UTF-8 without spaces and slashes", c.NodeName))
	}
	for name, d := range map[string]time.Duration{
		"dead-time": c.DeadTime, "sync-timeout": c.SyncTimeout, "tombstone-ttl": c.TombstoneTTL, "evicted-ttl": c.EvictedTTL, "max-clock-ahead": c.MaxClockAhead,
		"scan-interval": c.ScanInterval,
	} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("%s %s is not positive", name, d))
		}
	}
	if c.MaxScanInterval != 0 && c.MaxScanInterval < c.ScanInterval {
		errs = append(errs, fmt.Errorf("max-scan-interval %s is below scan-interval %s: give at least that, or 0 for the default", c.MaxScanInterval, c.ScanInterval))
	}
	if c.RefreshInterval < 0 {
		errs = append(errs, fmt.Errorf("refresh-interval %s is negative: 0 switches it off", c.RefreshInterval))
	}
	if usable := c.RedundancyShare > 0 && c.RedundancyShare <= 100; !usable {
		errs = append(errs, fmt.Errorf("redundancy-share %v is not usable: give a percentage of this node's entries, above 0 and at most 100", c.RedundancyShare))
	}
	if usable := c.ScanBudget > 0 && c.ScanBudget <= 100; !usable {
		errs = append(errs, fmt.Errorf("scan-budget %v is not usable: give a percentage of one core, above 0 and at most 100", c.ScanBudget))
	}
	if _, err := c.ScanCPUSet(); err != nil {
		errs = append(errs, fmt.Errorf("scan-cpus: %w", err))
	}
	if each := leaves(errs); len(each) > maxProblems {
		return errors.Join(append(each[:maxProblems], fmt.Errorf("and %d more problems", len(each)-maxProblems))...)
	}
	return errors.Join(errs...)
}

// maxProblems bounds the problems of settings that an error lists.
const maxProblems = 100

// leaves returns the errors that errs join.
func leaves(errs []error) (each []error) {
	for _, err := range errs {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			each = append(each, leaves(joined.Unwrap())...)
		} else if err != nil {
			each = append(each, err)
		}
	}
	return each
}

// usableNode reports whether name is a valid node name. Peers refuse a name that is not printable.
func usableNode(name string) bool {
	return name != "" && len(name) <= 128 && printable.IsName(name) && !strings.Contains(name, "/")
}

func (c *Config) validateMaps() error {
	if len(c.Maps) == 0 {
		return errors.New("no map to watch: give map at least once (`syncd maps` lists what is there), or a profile (`syncd profiles`)")
	}
	var errs []error
	seen, refs := make(map[string]bool), make(map[string]string)
	for _, s := range c.Maps {
		m, err := ParseMap(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if seen[m.Name] {
			errs = append(errs, fmt.Errorf("map %q: another map is called %s already", s, m.Name))
		}
		if other, ok := refs[m.Ref]; ok && other != m.Name {
			errs = append(errs, fmt.Errorf("map %q: %s is the same kernel map: give each kernel map one name", s, other))
		}
		seen[m.Name], refs[m.Ref] = true, m.Name
	}
	return errors.Join(errs...)
}

// ParseSchema parses one entry of the setting schema: MAP=FILE.
func ParseSchema(s string) (name, file string, err error) {
	name, file, ok := strings.Cut(s, "=")
	if !ok || !mapName.MatchString(name) || file == "" {
		return "", "", fmt.Errorf("schema %q: write MAP=FILE.o", s)
	}
	return name, file, nil
}

func (c *Config) validateSchemas() error {
	var errs []error
	for _, s := range c.Schemas {
		_, _, err := ParseSchema(s)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *Config) validateAddresses() error {
	var errs []error
	for name, addr := range map[string]string{
		"gossip-listen": c.GossipListen, "gossip-advertise": c.GossipAdvertise,
		"grpc-listen": c.GRPCListen, "grpc-advertise": c.GRPCAdvertise,
		"metrics-listen": c.MetricsListen,
	} {
		if addr == "" && name != "gossip-listen" && name != "grpc-listen" {
			continue // advertise defaults to listen; an empty metrics-listen disables the endpoint
		}
		_, port, err := net.SplitHostPort(addr)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q is not an address: write HOST:PORT with a numeric port", name, addr))
		}
	}
	if c.ControlSocket == "" || c.ControlSocket[0] == '@' {
		errs = append(errs, fmt.Errorf("control-socket %q is not usable: give the path of a socket", c.ControlSocket))
	}
	return errors.Join(errs...)
}

func (c *Config) validateTLS() error {
	set := 0
	for _, file := range []string{c.TLSCert, c.TLSKey, c.TLSCA} {
		if file != "" {
			set++
		}
	}
	if set != 0 && set != 3 {
		return errors.New("tls-cert, tls-key and tls-ca go together: give all three, or none")
	}
	return nil
}

// TLS reports whether connections between peers are encrypted and verified.
func (c *Config) TLS() bool { return c.TLSCert != "" }
