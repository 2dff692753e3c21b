package replicate

import (
	"encoding/binary"
	"errors"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// Exceptions of records in an array. The kernel does not distinguish a value of zeros from an element without content.
var (
	errZero  = errors.New("the value has only zeros, which an array does not store")
	errIndex = errors.New("the array has no such index")
)

// arrayError returns why an array cannot hold a live record, or nil.
func (in *inboundMap) arrayError(d *table.Delta) error {
	elements := in.m.layout.Elements
	switch {
	case elements == 0:
		return nil
	case len(d.Key) != 4 || int64(binary.NativeEndian.Uint32(d.Key)) >= int64(elements):
		return errIndex
	case in.tx.IsZero(d.Value):
		return errZero
	}
	return nil
}

// setAside counts and stores a record that this node's map cannot hold as it is. It returns false
// for all other errors, which concern the whole batch.
//
// Such a record stays with its owner and is listed in the status of both nodes. The rest of the
// batch is merged, so that one value does not block a map. The caller holds the table's lock.
func (in *inboundMap) setAside(w *wire.Delta, err error) bool {
	link := isUnnamed(err)
	switch {
	case !link && !errors.Is(err, schema.ErrRange) && !errors.Is(err, errZero) && !errors.Is(err, errIndex):
		return false
	case w.Operation != mapsyncv1.Operation_OPERATION_UPDATE:
		in.exceptions.resolve(w.Key) // a deleted entry is absent, as it should be
		return true
	// The interface, or room for the meaning, may appear later, so a full sync is repeated for these: see handleMerged.
	case link:
		in.result.withoutInterface++
	default:
		in.result.outOfRange++
	}
	in.result.refused++
	in.addException(w, err)
	return true
}

// addException stores a record that this node's map cannot hold. The caller holds the table's lock.
// mergeAll has filled in.ownerIDs.
func (in *inboundMap) addException(w *wire.Delta, why error) {
	var owner table.Owner
	if int(w.Owner) < len(in.ownerIDs) {
		owner = in.tx.Owner(in.ownerIDs[w.Owner])
	}
	in.exceptions.add(w.Key, table.Version(w.Version), owner, why)
}

// noteUnsent stores a record that cannot be encoded. The caller holds the table's lock. It is
// EncoderOptions.Unencodable of all encoders of the map.
func (m *localMap) noteUnsent(tx *table.Tx, r *table.Record, why error) {
	switch owner := tx.Owner(r.Owner); {
	case !r.Delete:
		m.unsent.add(r.Key, r.Version, owner, why)
	case isUnnamed(why) && m.unsent.byKey[string(r.Key)] == nil: // otherwise peers were not sent the record, and have nothing to delete
		m.unsentDeletes.add(r.Key, r.Version, owner, why)
	}
}

// isUnnamed reports whether an entry has a number without a name: of an interface, or of an id of another map.
func isUnnamed(err error) bool {
	return errors.Is(err, schema.ErrLink) || errors.Is(err, schema.ErrReference)
}

// hintFor returns what the operator can do about an exception. name is that of the map.
func hintFor(err error, name string) string {
	switch {
	case errors.Is(err, schema.ErrPadding):
		return "the load balancer must clear a key, padding too, before it fills the key in"
	case errors.Is(err, schema.ErrReference):
		return "let the load balancer have the entry of the id in the referenced map"
	case errors.Is(err, schema.ErrLink):
		return "give all nodes interfaces of the same names"
	case errors.Is(err, errIndex):
		return "give all nodes arrays of the same size"
	case errors.Is(err, schema.ErrRange):
		return "finish the upgrade of the load balancer: the field of this node's map is narrower"
	}
	return "syncd diff " + name + " lists the entries"
}
