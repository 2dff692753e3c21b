package daemon

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"

	"mapsync/syncd/table"
)

// digestKey returns the secret key for the digests of a map. It is the same on all nodes, because
// it is derived from the common gossip key, and senders of forged packets do not have it. Without
// a gossip key it is not secret, and readGossipKeys has logged a warning.
func (d *Daemon) digestKey(name string) []byte {
	var secret []byte
	if key := d.gossipKey.Load(); key != nil {
		secret = *key
	}
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte("mapsync digest of " + name))
	return mac.Sum(nil)
}

// setGossipKey sets the key that digest keys are derived from. It reports whether the key
// changed.
func (d *Daemon) setGossipKey(key []byte) (changed bool) {
	old := d.gossipKey.Swap(&key)
	return old == nil || !bytes.Equal(*old, key)
}

// useDigestKey sets the current digest key in the table.
func (m *replica) useDigestKey() {
	if t, _ := m.current(); t != nil {
		t.Update(func(tx *table.Tx) { tx.SetDigestKey(m.daemon.digestKey(m.name)) })
	}
}
