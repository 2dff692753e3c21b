package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/spf13/pflag"
)

// FieldUsage is the flag help of the setting field.
const FieldUsage = "role of a field, `MAP:FIELD=ROLE[,ROLE]`, in place of that of its type: ktime, boottime, jiffies, seconds, " +
	"ifindex, volatile, local, sum, be, ipv4, ipv6, mac, port, default=N, number=N or none (repeatable)"

// Bind declares every setting as a flag of fs that writes to c.
func (c *Config) Bind(fs *pflag.FlagSet) {
	c.bindMaps(fs)
	c.bindNetwork(fs)
	c.bindLimits(fs)
	c.bindTrust(fs)
	c.bindReplication(fs)
	c.bindScans(fs)
	c.bindDrainSums(fs)
	c.bindHost(fs)
}

// bindMaps declares the settings of maps and hooks.
func (c *Config) bindMaps(fs *pflag.FlagSet) {
	fs.StringArrayVar(&c.Maps, "map", c.Maps, "map to replicate, `[NAME=]REF` with REF name:N, pin:PATH or id:ID, or REF[KEY] for an inner map, REF[FIRST-LAST] for several (repeatable)")
	fs.StringArrayVar(&c.Profiles, "profile", c.Profiles, "`NAME` of the profile of a load balancer, or the path of a file with one: its maps with their fields (repeatable; profiles lists them)")
	fs.StringArrayVar(&c.OptionalMaps, "optional-map", c.OptionalMaps, "`MAP` that may be absent: the node is ready without it (repeatable)")
	fs.StringArrayVar(&c.EntrySizes, "entry-size", c.EntrySizes, "refuse a map whose entries have other sizes in bytes, `MAP=KEY+VALUE[,KEY+VALUE]` (repeatable)")
	fs.StringArrayVar(&c.Referenced, "referenced-map", c.Referenced, "map that says what the ids in fields with ref:NAME[FIELD,...] mean, `[NAME=]REF` as for map; it is not replicated (repeatable)")
	fs.StringArrayVar(&c.Schemas, "schema", c.Schemas, "read a map's types from a BPF object file instead of the kernel, `MAP=FILE.o` (repeatable)")
	fs.StringArrayVar(&c.Fields, "field", c.Fields, FieldUsage)
	fs.BoolVar(&c.StrictRoles, "strict-roles", c.StrictRoles, "do not become ready while a field seems to need a role: a time, an interface or a network namespace (schema suggest lists them)")
	fs.StringVar(&c.Attach, "attach", c.Attach, "how to hook the kernel: auto, fexit, kprobe, syscall (bpf(2) writes only) or none (changes are found by scans only)")
	fs.StringVar(&c.Buffer, "buffer", c.Buffer, "buffer between kernel and daemon: ring or perf")
	fs.IntVar(&c.BufferSize, "buffer-size", c.BufferSize, "size of the buffer, a power of two: bytes of a ring buffer, pages per CPU of a perf buffer (0: 4 MiB, 1024 pages)")
}

// bindNetwork declares the settings of the node, its addresses and certificates.
func (c *Config) bindNetwork(fs *pflag.FlagSet) {
	fs.StringVar(&c.NodeName, "node-name", c.NodeName, "this node's name among the peers, and in its certificate")
	fs.StringArrayVar(&c.Join, "join", c.Join, "gossip `HOST:PORT` of a peer to join (repeatable)")
	fs.StringVar(&c.GossipListen, "gossip-listen", c.GossipListen, "address for gossip, UDP and TCP")
	fs.StringVar(&c.GossipAdvertise, "gossip-advertise", c.GossipAdvertise, "gossip address that peers use (default: gossip-listen)")
	fs.StringVar(&c.GossipKeyFile, "gossip-key-file", c.GossipKeyFile, "file of base64 gossip keys, one a line, 16, 24 or 32 bytes each, the first for sending")
	fs.StringVar(&c.GRPCListen, "grpc-listen", c.GRPCListen, "address for replication streams")
	fs.StringVar(&c.GRPCAdvertise, "grpc-advertise", c.GRPCAdvertise, "replication address that peers use (default: grpc-listen)")
	fs.StringVar(&c.TLSCert, "tls-cert", c.TLSCert, "certificate of this node, PEM; its DNS name is the node name")
	fs.StringVar(&c.TLSKey, "tls-key", c.TLSKey, "private key of the certificate, PEM")
	fs.StringVar(&c.TLSCA, "tls-ca", c.TLSCA, "certificates of the authority that peers are verified against, PEM")
	fs.BoolVar(&c.Insecure, "insecure", c.Insecure, "allow replication without TLS, or without a gossip key: every program that reaches the ports, also on this host, can then read and change the maps")
}

// bindReplication declares the settings of readiness and of records.
func (c *Config) bindReplication(fs *pflag.FlagSet) {
	fs.StringVar(&c.Cluster, "cluster", c.Cluster, "name of the cluster: nodes with another name do not join, and all metrics have it as the label cluster")
	fs.StringArrayVar((*[]string)(&c.ExpectedPeers), "expected-peers", c.ExpectedPeers, "`NAME` of an expected peer (repeatable; this node is ignored), or one number of peers; missing peers are reported")
	fs.Float64Var(&c.RedundancyShare, "redundancy-share", c.RedundancyShare, "`percent` of this node's entries of each map that a peer must hold to count as redundancy")
	fs.BoolVar(&c.AllowUnservedMaps, "allow-unserved-maps", c.AllowUnservedMaps, "become ready although a live peer does not replicate a map with this node, as in a rolling upgrade")

	fs.DurationVar(&c.DeadTime, "dead-time", c.DeadTime, "time after which an unreachable peer counts as dead (at least 400ms)")
	fs.DurationVar(&c.SyncTimeout, "sync-timeout", c.SyncTimeout, "maximum wait for the initial sync before local entries become authoritative")
	fs.BoolVar(&c.EndDrainAtStart, "end-drain-at-start", c.EndDrainAtStart, "return to service if the node was drained when syncd stopped")
	fs.StringVar(&c.OnReadyTimeout, "on-ready-timeout", c.OnReadyTimeout, "readiness if the initial sync is not complete within sync-timeout: closed (not ready) or open (ready)")
	fs.DurationVar(&c.TombstoneTTL, "tombstone-ttl", c.TombstoneTTL, "lifetime of tombstones; a peer that is away for longer receives a full sync")
	fs.DurationVar(&c.MaxClockAhead, "max-clock-ahead", c.MaxClockAhead, "refuse a peer's records that are dated further ahead than this")
	fs.StringArrayVar(&c.Deletes, "deletes", c.Deletes, "which deletes by bpf(2) replicate, `MAP=any` or MAP=owner: all, or only those of entries that this node owns (repeatable; default: owner)")
	fs.StringArrayVar(&c.NewMap, "new-map", c.NewMap, "which content of a live peer's entry wins after the load balancer has replaced a map, `MAP=table` or MAP=map: the record, or what the new map holds (repeatable; default: table; map with deletes: any)")
	fs.StringArrayVar(&c.Clears, "clears", c.Clears, "whether deletes by bpf(2) replicate that clear a map in use, `MAP=hold` or MAP=replicate (repeatable; default: hold, for maps with deletes: any replicate)")
	fs.BoolVar(&c.EvictionDeletes, "eviction-deletes", c.EvictionDeletes, "replicate an LRU map's evictions as deletes")
	fs.Float64Var(&c.RecordsFactor, "max-records-factor", c.RecordsFactor, "maximum number of live records of a map, as a multiple of its maximum entries; records of peers above that are rejected")
	fs.IntVar(&c.MaxTombstones, "max-tombstones", c.MaxTombstones, "maximum number of tombstones of a map; the oldest are removed first (default: twice the map's maximum entries, at least 65536)")
	fs.DurationVar(&c.EvictedTTL, "evicted-ttl", c.EvictedTTL, "lifetime of a record of this node after its LRU map evicted the entry")
	fs.IntVar(&c.MaxEvicted, "max-evicted", c.MaxEvicted, "maximum number of evicted records of this node in each map; the oldest expire first (default: the map's maximum entries)")
	fs.StringArrayVar(&c.TakeoverExpiries, "takeover-expiry", c.TakeoverExpiries, "time without a use after which an entry expires that syncd wrote and whose owner has left, `MAP=DURATION`, MAP=DURATION:FIELD with a field that each use changes, or MAP=never; for maps with a bpf_timer (repeatable)")
}

// bindScans declares the settings of scans and of changes that no hook reports.
func (c *Config) bindScans(fs *pflag.FlagSet) {
	fs.DurationVar(&c.ScanInterval, "scan-interval", c.ScanInterval, "time between two scans of a map that changes; changes that no hook detects are replicated with this delay")
	fs.DurationVar(&c.MaxScanInterval, "max-scan-interval", c.MaxScanInterval, "longest time between two scans of a map that does not change, with fexit (default: 4 times scan-interval, and up to 16 times if a scan then needs more than 1 % of a core)")
	fs.Float64Var(&c.ScanBudget, "scan-budget", c.ScanBudget, "`percent` of one core that scans of all maps may use; if it is too low, scans are less frequent")
	fs.StringVar(&c.ScanCPUs, "scan-cpus", c.ScanCPUs, "`list` of the CPUs that read maps as a whole, like 2-3,8 (default: any CPU)")
	fs.StringArrayVar(&c.InPlace, "in-place", c.InPlace, "how changes in place are found, `MAP=hook` or MAP=scan: by a hook on lookups, or by scans only (repeatable; default: scan)")
	fs.DurationVar(&c.RefreshInterval, "refresh-interval", c.RefreshInterval, "minimum time between two changes of a key that are sent for volatile fields alone (0: never sent)")
}

// bindHost declares the settings of the daemon on its host.
func (c *Config) bindHost(fs *pflag.FlagSet) {
	fs.StringVar(&c.MetricsListen, "metrics-listen", c.MetricsListen, "address of /metrics, /healthz and /readyz (empty: none)")
	fs.StringVar(&c.ControlSocket, "control-socket", c.ControlSocket, "unix socket for the other subcommands")
	fs.StringArrayVar(&c.PinOwners, "pin-owner", c.PinOwners, "`user` or user id whose pinned maps are accepted, besides root's and syncd's own (repeatable)")
	fs.StringVar(&c.StateDir, "state-dir", c.StateDir, "directory of the state that a restart of syncd needs, valid until reboot")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "minimum log level: debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", c.LogFormat, "text or json")
}

// Load returns the validated settings. The file overrides the defaults, and the flags on the
// command line override the file. Without a file, path is empty.
func Load(path string, flags *pflag.FlagSet) (Config, error) {
	c, err := Read(path, flags)
	if err != nil {
		return Config{}, err
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("settings are not usable: %w", err)
	}
	return c, nil
}

// ReadWithProfile is Read for a file, or no file, with a profile in place of those of the file.
func ReadWithProfile(path, profile string) (Config, error) {
	flags := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	c := Default()
	c.Bind(flags)
	if err := flags.Set("profile", profile); err != nil {
		return Config{}, fmt.Errorf("profile: %w", err)
	}
	return Read(path, flags)
}

// Read is Load without validation of the values.
func Read(path string, flags *pflag.FlagSet) (Config, error) {
	c := Default()
	if path != "" {
		if err := c.readFile(path); err != nil {
			return Config{}, err
		}
	}
	if err := c.override(flags); err != nil {
		return Config{}, err
	}
	if err := c.applyProfiles(); err != nil {
		return Config{}, err
	}
	if err := c.expandInnerRanges(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (c *Config) readFile(path string) error {
	// O_NONBLOCK: a pipe would block the daemon at a reload.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open settings: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(fmt.Errorf("settings in %s: give a regular file", path), err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	if err := c.Parse(data); err != nil {
		return fmt.Errorf("settings in %s: %w", path, err)
	}
	return nil
}

// override applies the flags that were given on the command line.
func (c *Config) override(given *pflag.FlagSet) error {
	if given == nil {
		return nil
	}
	own := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	c.Bind(own)
	var err error
	given.Visit(func(f *pflag.Flag) {
		target := own.Lookup(f.Name)
		if target == nil || err != nil {
			return // a flag of the command, not a setting
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			err = target.Value.(pflag.SliceValue).Replace(list.GetSlice())
			return
		}
		err = target.Value.Set(f.Value.String())
	})
	if err != nil {
		return fmt.Errorf("apply flag: %w", err)
	}
	return nil
}
