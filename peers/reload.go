package peers

import (
	"fmt"
	"slices"
	"time"
)

const (
	// lookEvery is the least time between two looks at the files.
	lookEvery = time.Second
	// writeTime is for how long files that do not fit together are taken for
	// being written.
	writeTime = 2 * time.Second
	// expiryNotice is how long before its end a certificate is warned about when
	// it is loaded, unless it is made for a short life.
	expiryNotice = 7 * 24 * time.Hour
)

// reloadFailure is what is wrong with changed files, as long as they are.
type reloadFailure struct {
	text  string
	since time.Time
	told  bool
}

// material returns what the next handshake is to use, having looked whether the
// files changed. It returns nil if the credentials are insecure.
func (c *Credentials) material() *material {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.current == nil || now.Sub(c.looked) < lookEvery {
		return c.current
	}
	c.looked = now
	if stamps := c.opts.Load().stampFiles(); c.failure.text == "" && stamps == c.current.stamps && settled(stamps, now) {
		return c.current
	}
	m, err := c.opts.Load().loadMaterial(now)
	if err != nil {
		c.keep(err, now)
		return c.current
	}
	c.take(m, now)
	return c.current
}

// Prepare reads the files that options name, whatever their time stamps are, and returns a
// function that takes them and the patterns of names into use and ends the connections that are
// no longer allowed: for a reload that changes all or nothing. NodeName, Logger, and whether there
// is TLS stay as they are. The error says what is wrong with the files or patterns.
func (c *Credentials) Prepare(options CredentialsOptions) (use func(), err error) {
	old := c.opts.Load()
	options.NodeName, options.Logger = old.NodeName, old.Logger
	if err := CheckGlobs(slices.Concat(options.AllowedNames, options.Observers)); err != nil {
		return nil, err
	}
	if !c.Secure() {
		return func() { c.opts.Store(&options) }, nil
	}
	m, err := options.loadMaterial(time.Now())
	if err != nil {
		return nil, fmt.Errorf("load TLS files: %w", err)
	}
	return func() {
		now := time.Now()
		c.mu.Lock()
		c.opts.Store(&options)
		c.take(m, now)
		again := *c.current
		c.current = &again // another one, so that Recheck looks at each connection
		c.mu.Unlock()
		c.Recheck(now)
	}, nil
}

// take has the next handshake use m. The caller holds c.mu.
func (c *Credentials) take(m *material, now time.Time) {
	c.failure = reloadFailure{}
	if m.same(c.current) {
		c.current.stamps = m.stamps
		return
	}
	c.current = m
	c.stats.Reloads++
	c.log.Info("TLS files reloaded", "names", m.cert.Leaf.DNSNames, "not_after", m.cert.Leaf.NotAfter)
	c.advise(m, now)
}

// keep notes that the changed files are of no use. It is told once, and only if
// they stay so for a while: certificate and key are seldom replaced in one step.
// The caller holds c.mu.
func (c *Credentials) keep(err error, now time.Time) {
	if c.failure.text != err.Error() {
		c.failure = reloadFailure{text: err.Error(), since: now}
	}
	if c.failure.told || now.Sub(c.failure.since) < writeTime {
		return
	}
	c.failure.told = true
	c.stats.ReloadErrors++
	c.log.Error("changed TLS files cannot be used, the former ones stay in use",
		"error", err, "former_not_after", c.current.cert.Leaf.NotAfter)
}

// advise warns of what works today and should still be put right.
func (c *Credentials) advise(m *material, now time.Time) {
	if mode := m.stamps[fileKey].mode; mode&0o004 != 0 {
		c.log.Warn("TLS key file can be read by others: chmod 600 it", "file", c.opts.Load().KeyFile, "mode", mode.Perm().String())
	}
	for _, r := range m.crls {
		if !r.nextUpdate.IsZero() && now.After(r.nextUpdate) {
			c.log.Warn("the revocation list is out of date and stays in use: install the current one",
				"file", c.opts.Load().CRLFile, "issuer", r.signer.Subject.String(), "next_update", r.nextUpdate)
		}
	}
	leaf := m.cert.Leaf
	if left := leaf.NotAfter.Sub(now); left < min(expiryNotice, leaf.NotAfter.Sub(leaf.NotBefore)/3) {
		c.log.Warn("TLS certificate expires soon: renew it", "file", c.opts.Load().CertFile, "not_after", leaf.NotAfter)
	}
}
