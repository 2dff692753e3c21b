package peers

import (
	"fmt"
	"slices"
	"time"
)

const (
	// fileCheckEvery is the minimum time between two checks of the files.
	fileCheckEvery = time.Second
	// partialWriteTime is the time for which mismatched files count as a replacement in progress.
	partialWriteTime = 2 * time.Second
	// reloadRetryEvery is the pause between two reads of invalid files that do not change. A
	// certificate that is not yet valid may become valid later.
	reloadRetryEvery = 30 * time.Second
)

// reloadFailure describes why changed files cannot be used. It is empty when the files are valid.
type reloadFailure struct {
	text     string
	since    time.Time  // when the files were first invalid
	stamps   fileStamps // stamps of the files that were read last
	read     time.Time  // when they were read last
	logged   string     // the text that was logged last
	loggedAt time.Time
}

// currentState checks the files for changes and returns the state for the next handshake. While one
// goroutine reads the files, the other goroutines use the former state. It returns nil if the
// credentials are insecure.
func (c *Credentials) currentState() *tlsState {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.current == nil || c.checking || now.Sub(c.lastCheck) < fileCheckEvery {
		return c.current
	}
	options := c.opts.Load()
	c.lastCheck, c.checking = now, true
	known, retry := c.current.stamps, false
	if c.failure.text != "" { // certificates can become valid without a change of the file
		known, retry = c.failure.stamps, c.failure.logged == "" || now.Sub(c.failure.read) >= reloadRetryEvery
	}
	c.mu.Unlock()
	var m *tlsState
	var err error
	stamps := options.stampFiles()
	changed := retry || stamps != known || !stampsReliable(stamps, now)
	if changed {
		m, err = options.loadTLSState(now)
	}
	c.mu.Lock()
	c.checking = false
	switch {
	case !changed || c.opts.Load() != options: // or Prepare has read other files meanwhile
	case err != nil:
		c.failure.stamps, c.failure.read = stamps, now
		c.noteReloadFailure(err, now)
	default:
		c.install(m, now)
	}
	return c.current
}

// Prepare reads the files of options regardless of their time stamps. It returns a function that
// activates the files and name patterns and ends the connections that they no longer allow. A reload
// can thus change everything or nothing. NodeName, Logger, and whether TLS is in use do not change.
// The error describes what is wrong with the files or patterns.
func (c *Credentials) Prepare(options CredentialsOptions) (use func(), err error) {
	old := c.opts.Load()
	options.NodeName, options.Logger = old.NodeName, old.Logger
	if err := CheckGlobs(slices.Concat(options.AllowedNames, options.Observers)); err != nil {
		return nil, err
	}
	if !c.Secure() {
		return func() { c.opts.Store(&options) }, nil
	}
	m, err := options.loadTLSState(time.Now())
	if err != nil {
		return nil, fmt.Errorf("load TLS files: %w", err)
	}
	return func() {
		now := time.Now()
		c.mu.Lock()
		c.opts.Store(&options)
		if c.adviceLogLimit = newLogLimiter(adviseEvery); !c.install(m, now) {
			c.logAdvice(c.current, now)
		}
		again := *c.current
		c.current = &again // a copy makes Reverify verify each connection
		c.mu.Unlock()
		c.Reverify(now)
	}, nil
}

// install makes m the state for the next handshake and reports whether it is new. The caller holds
// c.mu.
func (c *Credentials) install(m *tlsState, now time.Time) (taken bool) {
	c.failure = reloadFailure{}
	if m.equalFiles(c.current) {
		c.current.stamps = m.stamps
		return false
	}
	c.current = m
	c.stats.Reloads++
	c.log.Info("TLS files reloaded", "names", m.cert.Leaf.DNSNames, "not_after", m.expiringCert.NotAfter)
	c.adviceLogLimit = newLogLimiter(adviseEvery)
	c.logAdvice(m, now)
	return true
}

// ReloadProblem returns why changed TLS files are not in use, or "". It returns "" while the files are being replaced.
func (c *Credentials) ReloadProblem() string {
	if c.currentState() == nil {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure.logged
}

// noteReloadFailure records that the changed files are invalid. It logs each error once, and only if
// the files stay invalid for partialWriteTime. Certificate and key are rarely replaced in one step.
// The caller holds c.mu.
func (c *Credentials) noteReloadFailure(err error, now time.Time) {
	f := &c.failure
	if f.text == "" {
		f.since = now
	}
	f.text = err.Error()
	if f.logged == f.text || now.Sub(f.since) < partialWriteTime || now.Sub(f.loggedAt) < logEvery {
		return
	}
	f.logged, f.loggedAt = f.text, now
	c.stats.ReloadErrors++
	c.log.Error("failed to reload TLS files, keeping the previous ones",
		"error", err, "former_not_after", c.current.expiringCert.NotAfter,
		"hint", "correct the file before former_not_after; syncd reads it again by itself")
}
