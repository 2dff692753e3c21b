package hostile

import (
	"fmt"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
)

// Records makes the deltas of a map without BTF.
type Records struct {
	encoder *schema.Encoder
}

// NewRecords returns the Records of a map with the given sizes in bytes.
func NewRecords(name string, keySize, valueSize int) (*Records, error) {
	e, err := schema.NewEncoder(schema.FromSizes(name, keySize, valueSize), nil)
	if err != nil {
		return nil, fmt.Errorf("make the encoder of map %s: %w", name, err)
	}
	return &Records{e}, nil
}

// Update returns the delta that sets a key to a value. The owner is an index into the batch's
// owners.
func (r *Records) Update(key, value []byte, owner uint32, version uint64) *mapsyncv1.Delta {
	return &mapsyncv1.Delta{
		Key: r.key(key), Value: r.encoder.AppendValue(nil, nil, value, &schema.Times{}), Version: version, Owner: owner,
		Operation: mapsyncv1.Operation_OPERATION_UPDATE,
	}
}

// Delete returns the delta that deletes a key. The owner is an index into the batch's owners.
func (r *Records) Delete(key []byte, owner uint32, version uint64) *mapsyncv1.Delta {
	return &mapsyncv1.Delta{Key: r.key(key), Version: version, Owner: owner, Operation: mapsyncv1.Operation_OPERATION_DELETE}
}

func (r *Records) key(key []byte) []byte {
	encoded, err := r.encoder.AppendKey(nil, key)
	if err != nil {
		panic(err) // unreachable: a key without types can always be encoded
	}
	return encoded
}

// Schema returns the wire form of the schema of a map without BTF. The sizes are in bytes.
func Schema(name string, keySize, valueSize uint32) *mapsyncv1.Schema {
	half := func(name string, size uint32) *mapsyncv1.MessageType {
		return &mapsyncv1.MessageType{Name: name, Size: size, Fields: []*mapsyncv1.Field{{
			Name: "bytes", Number: 1, Size: size, Kind: mapsyncv1.FieldKind_FIELD_KIND_BYTES,
		}}}
	}
	return &mapsyncv1.Schema{Key: half(name+"_key", keySize), Value: half(name+"_value", valueSize), Opaque: true}
}
