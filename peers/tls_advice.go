package peers

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

// expiryNotice is the remaining validity below which a loaded certificate causes a warning.
// Certificates with a short total validity are exempt.
const expiryNotice = 7 * 24 * time.Hour

// adviseEvery is the pause between two messages with the same advice.
const adviseEvery = 24 * time.Hour

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
			c.log.Warn("TLS files need attention", "file", a.File, "cause", a.Problem, "hint", a.Hint)
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
