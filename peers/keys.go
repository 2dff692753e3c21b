package peers

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// errPlainGossip is why a key cannot be given to gossip that runs without one, or taken
// from gossip that runs with one.
var errPlainGossip = errors.New("gossip encryption is switched on or off by a restart only")

// CheckGossipKey returns an error if a key has a length that AES does not have.
func CheckGossipKey(key []byte) error {
	if !slices.Contains([]int{16, 24, 32}, len(key)) {
		return fmt.Errorf("it has %d bytes, want 16, 24 or 32", len(key))
	}
	return nil
}

// CheckGossipKeys is CheckGossipKey for several keys.
func CheckGossipKeys(keys [][]byte) error {
	var errs []error
	for i, key := range keys {
		if err := CheckGossipKey(key); err != nil {
			errs = append(errs, fmt.Errorf("gossip key %d: %w", i+1, err))
		}
	}
	return errors.Join(errs...)
}

// CheckNewKeys returns an error if SetGossipKeys would refuse keys.
func (c *Cluster) CheckNewKeys(keys [][]byte) error {
	err := CheckGossipKeys(keys)
	if err == nil && (c.ring == nil) != (len(keys) == 0) {
		err = errPlainGossip
	}
	if err != nil {
		return fmt.Errorf("set gossip keys: %w", err)
	}
	return nil
}

// SetGossipKeys replaces the gossip keys: the first encrypts from now on, all decrypt,
// and keys that are not among them do not. It changes nothing when it returns an error.
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
		if err := c.ring.AddKey(key); err != nil {
			return fmt.Errorf("add gossip key: %w", err)
		}
	}
	return nil
}

// encryptWith has the first key encrypt, and removes those of the ring that are not among keys. The
// library shifts keys in a slice that others are reading unless it removes the last one, so those
// that stay are moved to the front first, where each encrypts for a moment, if another key follows
// them. A key that is new, and may not be on other nodes, is added after that.
func (c *Cluster) encryptWith(keys [][]byte) error {
	if err := c.ring.AddKey(keys[0]); err != nil {
		return fmt.Errorf("add gossip key: %w", err)
	}
	if err := c.ring.UseKey(keys[0]); err != nil {
		return fmt.Errorf("use gossip key: %w", err)
	}
	if more, err := c.removeLast(keys); err != nil || !more {
		return err
	}
	for _, key := range slices.Backward(keys) {
		if !contains(c.ring.GetKeys(), key) {
			continue
		}
		if err := c.ring.UseKey(key); err != nil {
			return fmt.Errorf("use gossip key: %w", err)
		}
	}
	_, err := c.removeLast(keys)
	return err
}

// removeLast removes keys from the end of the ring until one of those that stay is the last. It reports
// whether others remain before that.
func (c *Cluster) removeLast(stay [][]byte) (more bool, err error) {
	for list := c.ring.GetKeys(); ; list = c.ring.GetKeys() {
		last := list[len(list)-1]
		if contains(stay, last) {
			return slices.ContainsFunc(list, func(key []byte) bool { return !contains(stay, key) }), nil
		}
		if err := c.ring.RemoveKey(last); err != nil {
			return false, fmt.Errorf("remove gossip key: %w", err)
		}
	}
}

func contains(keys [][]byte, key []byte) bool {
	return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
}
