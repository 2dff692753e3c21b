package peers

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/memberlist"
)

// errEncryptionSwitch is the error for adding a first key to unencrypted gossip, or removing all keys
// from encrypted gossip.
var errEncryptionSwitch = errors.New("gossip encryption is switched on or off by a restart only")

// CheckGossipKey returns an error if the length of key is not an AES key length.
func CheckGossipKey(key []byte) error {
	if !slices.Contains([]int{16, 24, 32}, len(key)) {
		return fmt.Errorf("it has %d bytes, want 16, 24 or 32", len(key))
	}
	return nil
}

// CheckGossipKeys applies CheckGossipKey to several keys and joins the errors.
func CheckGossipKeys(keys [][]byte) error {
	var errs []error
	for i, key := range keys {
		if err := CheckGossipKey(key); err != nil {
			errs = append(errs, fmt.Errorf("gossip key %d: %w", i+1, err))
		}
	}
	return errors.Join(errs...)
}

// newKeyring returns a keyring with at least one key. The first key encrypts, and all keys decrypt.
func newKeyring(keys [][]byte) (*memberlist.Keyring, error) {
	ring, err := memberlist.NewKeyring(keys, keys[0])
	if err != nil {
		return nil, fmt.Errorf("install gossip keys: %w", err)
	}
	return ring, nil
}

// CheckNewKeys returns an error if SetGossipKeys would refuse keys.
func (c *Cluster) CheckNewKeys(keys [][]byte) error {
	err := CheckGossipKeys(keys)
	if err == nil && (c.keyring == nil) != (len(keys) == 0) {
		err = errEncryptionSwitch
	}
	if err != nil {
		return fmt.Errorf("set gossip keys: %w", err)
	}
	return nil
}

// SetGossipKeys replaces the gossip keys. The first key encrypts from now on, all keys decrypt, and
// former keys are removed. If CheckNewKeys refuses the keys, SetGossipKeys changes nothing.
func (c *Cluster) SetGossipKeys(keys [][]byte) error {
	if err := c.CheckNewKeys(keys); err != nil || len(keys) == 0 {
		return err
	}
	c.keysMu.Lock()
	defer c.keysMu.Unlock()
	if err := c.encryptWith(keys); err != nil {
		return err
	}
	for _, key := range keys[1:] {
		if err := c.keyring.AddKey(key); err != nil {
			return fmt.Errorf("add gossip key: %w", err)
		}
	}
	return nil
}

// encryptWith makes the first key the encryption key and removes the keys of the keyring that are not
// in keys. memberlist shifts keys in a slice that other goroutines read, unless it removes the last
// key. Therefore encryptWith first moves the remaining keys to the front. Each of them encrypts for a
// moment if another key follows it. SetGossipKeys adds new keys later, because other nodes may not
// have them yet.
func (c *Cluster) encryptWith(keys [][]byte) error {
	if err := c.keyring.AddKey(keys[0]); err != nil {
		return fmt.Errorf("add gossip key: %w", err)
	}
	if err := c.keyring.UseKey(keys[0]); err != nil {
		return fmt.Errorf("use gossip key: %w", err)
	}
	if more, err := c.removeLast(keys); err != nil || !more {
		return err
	}
	for _, key := range slices.Backward(keys) {
		if !contains(c.keyring.GetKeys(), key) {
			continue
		}
		if err := c.keyring.UseKey(key); err != nil {
			return fmt.Errorf("use gossip key: %w", err)
		}
	}
	_, err := c.removeLast(keys)
	return err
}

// removeLast removes keys from the end of the keyring until the last key is in stay. It reports
// whether other keys outside stay remain before it.
func (c *Cluster) removeLast(stay [][]byte) (more bool, err error) {
	for list := c.keyring.GetKeys(); ; list = c.keyring.GetKeys() {
		last := list[len(list)-1]
		if contains(stay, last) {
			return slices.ContainsFunc(list, func(key []byte) bool { return !contains(stay, key) }), nil
		}
		if err := c.keyring.RemoveKey(last); err != nil {
			return false, fmt.Errorf("remove gossip key: %w", err)
		}
	}
}

func contains(keys [][]byte, key []byte) bool {
	return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
}
