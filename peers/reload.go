package peers

import (
	"bytes"
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
	// retryEvery is the pause between two readings of files that are of no use and do not change:
	// what is not valid yet may be later.
	retryEvery = 30 * time.Second
	// adviseEvery is the pause between two messages with the same advice.
	adviseEvery = 24 * time.Hour
)

// reloadFailure is what is wrong with changed files, as long as they are.
type reloadFailure struct {
	text   string
	since  time.Time  // when files were of no use first
	stamps fileStamps // of those that were read last
	read   time.Time  // when that was
	told   string     // the text that was logged last
	toldAt time.Time
}

// material returns what the next handshake is to use, having looked whether the files changed. While
// one goroutine reads them, the others use the former ones. It returns nil if the credentials are
// insecure.
func (c *Credentials) material() *material {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.current == nil || c.looking || now.Sub(c.looked) < lookEvery {
		return c.current
	}
	options := c.opts.Load()
	c.looked, c.looking = now, true
	known, retry := c.current.stamps, false
	if c.failure.text != "" { // certificates become valid without any change of a file
		known, retry = c.failure.stamps, c.failure.told == "" || now.Sub(c.failure.read) >= retryEvery
	}
	c.mu.Unlock()
	var m *material
	var err error
	stamps := options.stampFiles()
	changed := retry || stamps != known || !settled(stamps, now)
	if changed {
		m, err = options.loadMaterial(now)
	}
	c.mu.Lock()
	c.looking = false
	switch {
	case !changed || c.opts.Load() != options: // or Prepare has read others meanwhile
	case err != nil:
		c.failure.stamps, c.failure.read = stamps, now
		c.keep(err, now)
	default:
		c.take(m, now)
	}
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
		if c.advised = newGate(adviseEvery); !c.take(m, now) {
			c.advise(c.current, now)
		}
		again := *c.current
		c.current = &again // another one, so that Recheck looks at each connection
		c.mu.Unlock()
		c.Recheck(now)
	}, nil
}

// take has the next handshake use m, and reports whether that is something new. The caller holds c.mu.
func (c *Credentials) take(m *material, now time.Time) (taken bool) {
	c.failure = reloadFailure{}
	if m.same(c.current) {
		c.current.stamps = m.stamps
		return false
	}
	c.current = m
	c.stats.Reloads++
	c.log.Info("TLS files reloaded", "names", m.cert.Leaf.DNSNames, "not_after", m.ending.NotAfter)
	c.advised = newGate(adviseEvery)
	c.advise(m, now)
	return true
}

// keep notes that the changed files are of no use. It is logged once for each error, and only if
// they stay so for a while: certificate and key are seldom replaced in one step.
// The caller holds c.mu.
func (c *Credentials) keep(err error, now time.Time) {
	f := &c.failure
	if f.text == "" {
		f.since = now
	}
	f.text = err.Error()
	if f.told == f.text || now.Sub(f.since) < writeTime || now.Sub(f.toldAt) < logEvery {
		return
	}
	f.told, f.toldAt = f.text, now
	c.stats.ReloadErrors++
	c.log.Error("changed TLS files cannot be used, the former ones stay in use",
		"error", err, "former_not_after", c.current.ending.NotAfter)
}

// Advice is what works with files as they are and an operator should change.
type Advice struct {
	// File is the file concerned.
	File string
	// Problem says what is wrong, Hint what to do.
	Problem, Hint string
}

// Advice returns what to change about the files in use.
func (c *Credentials) Advice() []Advice {
	m := c.material()
	if m == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return m.advice(c.opts.Load(), time.Now())
}

func (m *material) advice(o *CredentialsOptions, now time.Time) (list []Advice) {
	add := func(file, problem, hint string) { list = append(list, Advice{file, problem, hint}) }
	if mode := m.stamps[fileKey].mode; mode&0o004 != 0 {
		add(o.KeyFile, fmt.Sprintf("the key can be read by others (mode %04o)", mode.Perm()), "chmod 600 it")
	}
	for _, r := range m.currentLists() {
		if !r.nextUpdate.IsZero() && now.After(r.nextUpdate) {
			add(o.CRLFile, "the revocation list of "+subjectName(r.signer)+" is out of date since "+stamp(r.nextUpdate)+" and stays in use", "install the current one")
		}
	}
	leaf, end := m.cert.Leaf, m.ending
	if left := end.NotAfter.Sub(now); left < min(expiryNotice, end.NotAfter.Sub(end.NotBefore)/3) {
		switch {
		case end.Equal(leaf):
			add(o.CertFile, "the certificate expires soon: "+stamp(end.NotAfter), "renew it")
		case slices.ContainsFunc(m.cert.Certificate, func(der []byte) bool { return bytes.Equal(der, end.Raw) }):
			add(o.CertFile, "the certificate of the intermediate CA "+subjectName(end)+" expires soon: "+stamp(end.NotAfter), "renew it, and replace it in the files of all nodes that have it")
		default:
			add(o.CAFile, "the certificate of the CA "+subjectName(end)+" expires soon: "+stamp(end.NotAfter), "renew it, and with it the certificates of all nodes")
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

// advise logs each advice once a day, and when it arises. The caller holds c.mu.
func (c *Credentials) advise(m *material, now time.Time) {
	for _, a := range m.advice(c.opts.Load(), now) {
		if c.advised.allow(a.Problem) {
			c.log.Warn("TLS files need attention", "file", a.File, "problem", a.Problem, "hint", a.Hint)
		}
	}
}

// currentLists returns the list of each signer that is valid for longest. It leaves out signers whose
// own certificate has ended.
func (m *material) currentLists() (current []revocations) {
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

// nextUpdate returns when the first of the current revocation lists is out of date, 0 if none says it.
func (m *material) nextUpdate() (first time.Time) {
	for _, r := range m.currentLists() {
		if !r.nextUpdate.IsZero() && (first.IsZero() || r.nextUpdate.Before(first)) {
			first = r.nextUpdate
		}
	}
	return first
}
