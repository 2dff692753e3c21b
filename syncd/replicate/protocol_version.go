package replicate

import (
	"cmp"
	"errors"
	"fmt"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// supportedVersions are the versions of the protocol that this release supports. A release supports
// at least one version that the previous release supports, so that both run in one cluster.
var supportedVersions = versionRange{lowest: 2, highest: 2}

var (
	// errVersions is wrapped by the errors about nodes without a common version of the protocol.
	errVersions = errors.New("no common protocol version")
	// errNoRange is wrapped by the errors about versions in a Hello that are not a range.
	errNoRange = errors.New("invalid protocol versions")
)

// versionRange is the range of protocol versions that a node supports.
type versionRange struct {
	// lowest and highest belong to the range. 1 <= lowest <= highest, except in a received range.
	lowest, highest uint32
}

// offered returns the range in a Hello. A peer that sends one version supports only that one. The
// range of a hostile peer may be invalid.
func offered(h *mapsyncv1.Hello) versionRange {
	lowest := h.GetProtocolVersion()
	return versionRange{lowest, cmp.Or(h.GetMaxProtocolVersion(), lowest)}
}

// choose returns the highest version that both this node and its peer support. The error names both
// ranges and the node to upgrade. It wraps errVersions, or errNoRange if the range of the peer is
// invalid.
//
// Both sides use it: the sender with the range in a Hello, the receiver with the single version in
// a Welcome. So neither side runs a version that it does not support. An operator who upgrades node
// by node gets the name of the node that is still too old.
func (v versionRange) choose(self, peer string, peerVersions versionRange) (uint32, error) {
	// Only a faulty or hostile peer sends this. It is an invalid request and not an old release.
	if peerVersions.lowest == 0 || peerVersions.lowest > peerVersions.highest {
		return 0, fmt.Errorf("negotiate with %.255q: protocol versions %d to %d: %w",
			peer, peerVersions.lowest, peerVersions.highest, errNoRange)
	}
	chosen := min(v.highest, peerVersions.highest)
	if chosen >= max(v.lowest, peerVersions.lowest) {
		return chosen, nil
	}
	// The ranges do not overlap, so the node with the lower one is the older release.
	older := peer
	if v.highest < peerVersions.lowest {
		older = self
	}
	return 0, fmt.Errorf("negotiate with %.255q: it supports protocol %s, %q supports %s: %w (upgrade syncd on %.255q)",
		peer, peerVersions, self, v, errVersions, older)
}

// String returns the range as text: "version 1" or "versions 1 to 2".
func (v versionRange) String() string {
	if v.lowest == v.highest {
		return fmt.Sprintf("version %d", v.lowest)
	}
	return fmt.Sprintf("versions %d to %d", v.lowest, v.highest)
}
