package peers

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

const (
	// fileCheckEvery is the minimum time between two checks of the files.
	fileCheckEvery = time.Second
	// partialWriteTime is the time for which mismatched files count as a replacement in progress.
	partialWriteTime = 2 * time.Second
	// expiryNotice is the remaining validity below which a loaded certificate causes a warning.
	// Certificates with a short total validity are exempt.
	expiryNotice = 7 * 24 * time.Hour
	// reloadRetryEvery is the pause between two reads of invalid files that do not change. A
	// certificate that is not yet valid may become valid later.
	reloadRetryEvery = 30 * time.Second
	// adviseEvery is the pause between two messages with the same advice.
	adviseEvery = 24 * time.Hour
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
		c.current = &again // a copy makes Recheck verify each connection
		c.mu.Unlock()
		c.Recheck(now)
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
		"error", err, "former_not_after", c.current.expiringCert.NotAfter)
}

// Advice is a recommendation about files that are valid but that the operator should change.
type Advice struct {
	// File is the path of the file.
	File string
	// Problem describes what is wrong, Hint the remedy.
	Problem, Hint string
}

// Advice returns the recommendations for the files in use.
func (c *Credentials) Advice() []Advice {
	m := c.currentState()
	if m == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return m.advice(c.opts.Load(), time.Now())
}

func (m *tlsState) advice(o *CredentialsOptions, now time.Time) (list []Advice) {
	add := func(file, problem, hint string) { list = append(list, Advice{file, problem, hint}) }
	if mode := m.stamps[fileKey].mode; mode&0o004 != 0 {
		add(o.KeyFile, fmt.Sprintf("the key can be read by others (mode %04o)", mode.Perm()), "chmod 600 it")
	}
	for _, r := range m.currentLists() {
		if !r.nextUpdate.IsZero() && now.After(r.nextUpdate) {
			add(o.CRLFile, "the revocation list of "+subjectName(r.signer)+" is out of date since "+formatTime(r.nextUpdate)+" and stays in use", "install the current one")
		}
	}
	leaf, end := m.cert.Leaf, m.expiringCert
	if left := end.NotAfter.Sub(now); left < min(expiryNotice, end.NotAfter.Sub(end.NotBefore)/3) {
		switch {
		case end.Equal(leaf):
			add(o.CertFile, "the certificate expires soon: "+formatTime(end.NotAfter), "renew it")
		case slices.ContainsFunc(m.cert.Certificate, func(der []byte) bool { return bytes.Equal(der, end.Raw) }):
			add(o.CertFile, "the certificate of the intermediate CA "+subjectName(end)+" expires soon: "+formatTime(end.NotAfter), "renew it, and replace it in the files of all nodes that have it")
		default:
			add(o.CAFile, "the certificate of the CA "+subjectName(end)+" expires soon: "+formatTime(end.NotAfter), "renew it, and with it the certificates of all nodes")
		}
	}
	if m.revoked(m.chains) {
		add(o.CertFile, "the certificate is revoked: peers with the same list refuse it", "issue this node a new one")
	}
	if !o.replica(leaf) {
		add(o.CertFile, "this node's own certificate (for "+nameList(leaf)+") may not replicate by its settings: peers with the same settings refuse it",
			"add its name to allowed-names, and take it out of observers")
	}
	return list
}

// logAdvice logs each advice when it arises and then once per day. The caller holds c.mu.
func (c *Credentials) logAdvice(m *tlsState, now time.Time) {
	for _, a := range m.advice(c.opts.Load(), now) {
		if c.adviceLogLimit.allow(a.Problem) {
			c.log.Warn("TLS files need attention", "file", a.File, "problem", a.Problem, "hint", a.Hint)
		}
	}
}

// currentLists returns the list of each signer that is valid for the longest time. It omits signers
// whose own certificate has expired.
func (m *tlsState) currentLists() (current []revocations) {
	for _, r := range m.crls {
		i := slices.IndexFunc(current, func(c revocations) bool {
			return bytes.Equal(c.signer.RawSubjectPublicKeyInfo, r.signer.RawSubjectPublicKeyInfo)
		})
		switch {
		case time.Now().After(r.signer.NotAfter):
		case i < 0:
			current = append(current, r)
		case r.nextUpdate.After(current[i].nextUpdate):
			current[i] = r
		}
	}
	return current
}

// nextUpdate returns the time at which the first current revocation list becomes outdated, or 0 if no
// list states it.
func (m *tlsState) nextUpdate() (first time.Time) {
	for _, r := range m.currentLists() {
		if !r.nextUpdate.IsZero() && (first.IsZero() || r.nextUpdate.Before(first)) {
			first = r.nextUpdate
		}
	}
	return first
}
