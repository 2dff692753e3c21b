package peers

import (
	"errors"
	"fmt"
	"slices"
)

// errPlainGossip is why a key cannot be given to gossip that runs without one, or taken
// from gossip that runs with one.
var errPlainGossip = errors.New("gossip encryption is switched on or off by a restart only")

// CheckGossipKeys returns an error if a key has a length that AES does not have.
func CheckGossipKeys(keys [][]byte) error {
	var errs []error
	for i, key := range keys {
		if !slices.Contains([]int{16, 24, 32}, len(key)) {
			errs = append(errs, fmt.Errorf("gossip key %d has %d bytes, want 16, 24 or 32", i+1, len(key)))
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
	for _, key := range keys {
		if err := c.ring.AddKey(key); err != nil {
			return fmt.Errorf("add gossip key: %w", err)
		}
	}
	return c.orderKeys(keys)
}

// orderKeys brings the keys of the ring into the order given, with the others last, and
// removes those. The library shifts keys in a slice that others are reading unless it removes
// the last one, so a key is moved there first.
func (c *Cluster) orderKeys(keys [][]byte) error {
	wanted := func(key []byte) bool {
		return slices.ContainsFunc(keys, func(k []byte) bool { return string(k) == string(key) })
	}
	old := slices.DeleteFunc(slices.Clone(c.ring.GetKeys()), wanted)
	order := keys[:1]
	if len(old) > 0 {
		order = keys
	}
	for _, key := range slices.Backward(order) {
		if err := c.ring.UseKey(key); err != nil {
			return fmt.Errorf("use gossip key: %w", err)
		}
	}
	for range old {
		list := c.ring.GetKeys()
		if err := c.ring.RemoveKey(list[len(list)-1]); err != nil {
			return fmt.Errorf("remove gossip key: %w", err)
		}
	}
	return nil
}
