package peers

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// CredentialsOptions names the files that secure the streams.
type CredentialsOptions struct {
	// CertFile is a PEM file with this node's certificate, followed by intermediates. The certificate
	// must permit server and client authentication.
	CertFile string
	// KeyFile is a PEM file with the private key of the certificate.
	KeyFile string
	// CAFile is a PEM file with the CA certificates that sign the nodes' certificates.
	CAFile string
	// CRLFile is a PEM file with revocation lists of these CAs. Empty disables revocation checks.
	CRLFile string
	// AllowedNames are patterns of DNS names, IP addresses and URIs of the certificates that may
	// replicate; see MatchName. Empty allows every certificate of the CA that matches none of
	// Observers.
	AllowedNames []string
	// Observers are patterns of the certificates that may observe. Empty allows none.
	Observers []string
	// NodeName must be one of the certificate's DNS names.
	NodeName string
	// Logger receives refusals and reloads. By default, nothing is logged.
	Logger *slog.Logger
}

// CredentialsStats is a snapshot of the counters of a Credentials.
type CredentialsStats struct {
	// Secure is false for Insecure.
	Secure bool
	// NotBefore and NotAfter bound the validity of the certificate in use. NotAfter is the end of the
	// CA's validity if that is earlier.
	NotBefore, NotAfter time.Time
	// NextUpdate is the time at which the first revocation list becomes outdated, or 0 if no list
	// states it.
	NextUpdate time.Time
	// Reloads counts changed files that are in use. ReloadErrors counts changed files that could not
	// be loaded.
	Reloads, ReloadErrors uint64
	// Accepted and Dialled count successful handshakes, by side.
	Accepted, Dialled uint64
	// AcceptRefused and DialRefused count failed connection attempts, by side and reason. The caller
	// owns the maps.
	AcceptRefused, DialRefused map[Reason]uint64
	// Dropped counts connections that Run ended because it rejected the peer's certificate, by reason.
	// The caller owns the map.
	Dropped map[Reason]uint64
	// LogsSuppressed counts messages that rate limits suppressed.
	LogsSuppressed uint64
}

// Credentials secures the streams between nodes. Its methods are safe for concurrent use.
type Credentials struct {
	opts     atomic.Pointer[CredentialsOptions] // replaced by Prepare
	log      *slog.Logger
	logLimit *logLimiter

	mu             sync.Mutex
	current        *tlsState // nil if insecure; replaced as a whole, only its stamps change in place
	lastCheck      time.Time
	checking       bool // a goroutine reads the files
	failure        reloadFailure
	adviceLogLimit *logLimiter // limits each advice on the files in use
	stats          CredentialsStats
	tracked        map[*trackedConn]struct{}

	reverifyMu sync.Mutex // held during Reverify, which runs once at a time
}

// NewCredentials loads the files and checks that peers will accept them. The streams use mutual TLS
// 1.3. Both sides verify each other against the CA, and the client verifies the node's name.
// Handshakes and Stats check the files for changes, at most once per second. Valid new files apply to
// the next handshake.
func NewCredentials(opts CredentialsOptions) (*Credentials, error) {
	if opts.CertFile == "" || opts.KeyFile == "" || opts.CAFile == "" {
		return nil, errors.New("load TLS files: certificate, key and CA file are needed, all three")
	}
	if err := CheckNodeName(opts.NodeName); err != nil {
		return nil, fmt.Errorf("load TLS files: %w", err)
	}
	if err := CheckGlobs(slices.Concat(opts.AllowedNames, opts.Observers)); err != nil {
		return nil, err
	}
	c := newCredentials(opts)
	now := time.Now()
	m, err := opts.loadTLSState(now)
	if err != nil {
		return nil, fmt.Errorf("load TLS files: %w", err)
	}
	c.current, c.lastCheck = m, now
	c.logAdvice(m, now)
	return c, nil
}

// Insecure returns credentials without any security, for tests and for fully trusted networks. It
// uses the Logger, AllowedNames and Observers of the options. The names are matched against the name
// that the caller gives. Insecure credentials detect, count and log only one misconfiguration: a peer
// that uses TLS.
func Insecure(opts CredentialsOptions) *Credentials {
	return newCredentials(CredentialsOptions{Logger: opts.Logger, AllowedNames: opts.AllowedNames, Observers: opts.Observers})
}

func newCredentials(opts CredentialsOptions) *Credentials {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Credentials{
		log:      opts.Logger,
		logLimit: newLogLimiter(logEvery),

		adviceLogLimit: newLogLimiter(adviseEvery),

		tracked: make(map[*trackedConn]struct{}),
		stats: CredentialsStats{
			AcceptRefused: make(map[Reason]uint64),
			DialRefused:   make(map[Reason]uint64),
			Dropped:       map[Reason]uint64{ReasonExpired: 0, ReasonRevoked: 0},
		},
	}
	c.opts.Store(&opts)
	return c
}

// Secure reports whether streams are encrypted and peers verified.
func (c *Credentials) Secure() bool { return c.opts.Load().CertFile != "" }

// Server returns the credentials of this node's gRPC server.
func (c *Credentials) Server() credentials.TransportCredentials {
	return &transportCredentials{c: c}
}

// Client returns the credentials for dialling node. The server's certificate must contain that name,
// regardless of the dialled address.
func (c *Credentials) Client(node string) credentials.TransportCredentials {
	return &transportCredentials{c: c, node: node}
}

// Stats checks the files for changes and returns the current values of the counters.
func (c *Credentials) Stats() CredentialsStats {
	m := c.currentState()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Secure = c.Secure()
	if m != nil {
		s.NotBefore, s.NotAfter, s.NextUpdate = m.expiringCert.NotBefore, m.expiringCert.NotAfter, m.nextUpdate()
	}
	s.AcceptRefused = maps.Clone(s.AcceptRefused)
	s.DialRefused = maps.Clone(s.DialRefused)
	s.Dropped = maps.Clone(s.Dropped)
	s.LogsSuppressed = c.logLimit.suppressedCount()
	return s
}

// refused counts and logs a failed connection attempt.
func (c *Credentials) refused(server bool, err *RefusedError) {
	c.mu.Lock()
	if server {
		c.stats.AcceptRefused[err.Reason]++
	} else {
		c.stats.DialRefused[err.Reason]++
	}
	c.mu.Unlock()
	log := c.log.With("remote", err.Remote, "reason", string(err.Reason), "cause", err.Cause)
	if err.Reason == ReasonClosed {
		c.log.Debug("connection ended during its handshake", "remote", err.Remote, "cause", err.Cause)
		return
	}
	// The client's port differs in each attempt, so the key contains only the host.
	if !c.logLimit.allow(fmt.Sprint(server, err.Reason, hostOf(err.Remote))) {
		return
	}
	if server {
		// The caller has proved nothing: any program can connect. This node dials each node of the cluster as well, and the
		// same credentials fail there.
		log.Warn("refused a connection", "problem", "client-refused")
	} else {
		log.Error("connection to peer failed", "problem", "connection-refused")
	}
}
