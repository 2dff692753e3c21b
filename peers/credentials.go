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

// CredentialsOptions name the files that secure the streams.
type CredentialsOptions struct {
	// CertFile holds this node's certificate, followed by intermediates, in PEM.
	// It must be for server and client authentication.
	CertFile string
	// KeyFile holds its private key in PEM.
	KeyFile string
	// CAFile holds the CA certificates that sign the nodes' certificates, in PEM.
	CAFile string
	// CRLFile holds revocation lists of these CAs, in PEM; none if it is empty.
	CRLFile string
	// AllowedNames are patterns of DNS names, IP addresses and URIs of the certificates that
	// may replicate; see MatchName. Empty allows every certificate of the CA that matches none
	// of Observers.
	AllowedNames []string
	// Observers are patterns of those that may observe. Empty allows none.
	Observers []string
	// NodeName must be among the certificate's DNS names.
	NodeName string
	// Logger gets refusals and reloads; nothing is logged by default.
	Logger *slog.Logger
}

// CredentialsStats is a snapshot of a Credentials' counters.
type CredentialsStats struct {
	// Secure is false for Insecure.
	Secure bool
	// NotBefore and NotAfter are when the certificate in use becomes valid and when it expires, or
	// the CA's if that is earlier.
	NotBefore, NotAfter time.Time
	// NextUpdate is when the first of the revocation lists is out of date, 0 if none says it.
	NextUpdate time.Time
	// Reloads counts changed files taken into use, ReloadErrors changed files
	// that could not be.
	Reloads, ReloadErrors uint64
	// Accepted and Dialled count handshakes that succeeded, by side.
	Accepted, Dialled uint64
	// AcceptRefused and DialRefused count connections that did not come about,
	// by side. The maps are the caller's.
	AcceptRefused, DialRefused map[Reason]uint64
	// Dropped counts open connections that were ended because the peer's
	// certificate is not accepted any longer. The map is the caller's.
	Dropped map[Reason]uint64
	// LogsSuppressed counts messages held back by rate limits.
	LogsSuppressed uint64
}

// Credentials secures the streams between nodes. Its methods may be called from
// any goroutine.
type Credentials struct {
	opts atomic.Pointer[CredentialsOptions] // replaced by Prepare
	log  *slog.Logger
	gate *gate

	mu      sync.Mutex
	current *material // nil if insecure; replaced, never changed but for its stamps
	looked  time.Time
	looking bool // a goroutine reads the files
	failure reloadFailure
	advised *gate // for each advice on the material in use
	stats   CredentialsStats
	tracked map[*trackedConn]struct{}

	recheckMu sync.Mutex // one Recheck at a time
}

// NewCredentials loads the files and checks that peers will accept them: mutual
// TLS 1.3, in which both sides verify each other against the CA and the client
// verifies the node's name. The files are looked at again at handshakes and by
// Stats, at most once a second; what is new and valid serves the next handshake.
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
	m, err := opts.loadMaterial(now)
	if err != nil {
		return nil, fmt.Errorf("load TLS files: %w", err)
	}
	c.current, c.looked = m, now
	c.advise(m, now)
	return c, nil
}

// Insecure returns credentials without any security, for tests and for networks
// that are trusted as a whole. It counts and names the one mistake it can see:
// a peer that speaks TLS.
func Insecure(logger *slog.Logger) *Credentials {
	return InsecureWith(CredentialsOptions{Logger: logger})
}

// InsecureWith is Insecure with the AllowedNames and Observers of the options,
// which are matched with the name that a caller gives.
func InsecureWith(opts CredentialsOptions) *Credentials {
	return newCredentials(CredentialsOptions{Logger: opts.Logger, AllowedNames: opts.AllowedNames, Observers: opts.Observers})
}

func newCredentials(opts CredentialsOptions) *Credentials {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Credentials{
		log:  opts.Logger,
		gate: newGate(logEvery),

		advised: newGate(adviseEvery),

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

// Client returns the credentials for dialling node. Its certificate must carry
// that name, whatever address it is dialled at.
func (c *Credentials) Client(node string) credentials.TransportCredentials {
	return &transportCredentials{c: c, node: node}
}

// Stats returns the counters as they are now, after a look at the files.
func (c *Credentials) Stats() CredentialsStats {
	m := c.material()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Secure = c.Secure()
	if m != nil {
		s.NotBefore, s.NotAfter, s.NextUpdate = m.ending.NotBefore, m.ending.NotAfter, m.nextUpdate()
	}
	s.AcceptRefused = maps.Clone(s.AcceptRefused)
	s.DialRefused = maps.Clone(s.DialRefused)
	s.Dropped = maps.Clone(s.Dropped)
	s.LogsSuppressed = c.gate.held()
	return s
}

// refused counts and logs a connection that did not come about.
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
		log.Debug("connection ended during its handshake")
		return
	}
	// A client's port is another one each time.
	if !c.gate.allow(fmt.Sprint(server, err.Reason, hostOf(err.Remote))) {
		return
	}
	if server {
		log.Error("refused a connection")
	} else {
		log.Error("connection to peer failed")
	}
}
