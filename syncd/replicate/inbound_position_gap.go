package replicate

import (
	"errors"
	"fmt"

	"mapsync/syncd/replicate/wire"
)

// errGap is wrapped by the error of a batch that does not continue at the last position.
var errGap = errors.New("gap in the changes of a map")

// checkPosition counts a gap and returns an error that wraps errGap if a batch does not continue at
// in.position. Only the receiving goroutine calls it.
func (in *inboundMap) checkPosition(b *wire.Batch) error {
	// A batch out of turn starts and ends at in.position. A gap means that a batch was lost.
	// Merging it nevertheless would lose the changes in between: the next resume begins after them.
	if b.PreviousPosition != in.position || b.Position < b.PreviousPosition {
		in.stream.r.count.gaps.Add(1)
		return fmt.Errorf("merge batch of map %q from %d to %d at %d: %w",
			in.m.name, b.PreviousPosition, b.Position, in.position, errGap)
	}
	return nil
}
