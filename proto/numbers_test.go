package proto_test

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// files are the files of the wire contract.
var files = []protoreflect.FileDescriptor{
	mapsyncv1.File_mapsync_v1_replication_proto,
	mapsyncv1.File_mapsync_v1_schema_proto,
}

// TestNumbersAreUsedOrReserved checks that each number below the highest one of a message or enum is
// used or reserved. A gap without a reservation may be a number of an earlier release, which must
// not be used again.
func TestNumbersAreUsedOrReserved(t *testing.T) {
	for _, file := range files {
		messages(file.Messages(), func(m protoreflect.MessageDescriptor) {
			for _, n := range freeFields(m) {
				t.Errorf("message %s: number %d is neither used nor reserved; reserve it", m.FullName(), n)
			}
		})
		for i := range file.Enums().Len() {
			e := file.Enums().Get(i)
			for _, n := range freeValues(e) {
				t.Errorf("enum %s: number %d is neither used nor reserved; reserve it", e.FullName(), n)
			}
		}
	}
}

// messages calls fn for all messages of a list, and for the messages within them.
func messages(list protoreflect.MessageDescriptors, fn func(protoreflect.MessageDescriptor)) {
	for i := range list.Len() {
		fn(list.Get(i))
		messages(list.Get(i).Messages(), fn)
	}
}

// freeFields returns the numbers below the highest one of a message that are neither used nor
// reserved.
func freeFields(m protoreflect.MessageDescriptor) (free []protoreflect.FieldNumber) {
	var highest protoreflect.FieldNumber
	for i := range m.Fields().Len() {
		highest = max(highest, m.Fields().Get(i).Number())
	}
	for n := protoreflect.FieldNumber(1); n < highest; n++ {
		if m.Fields().ByNumber(n) == nil && !m.ReservedRanges().Has(n) {
			free = append(free, n)
		}
	}
	return free
}

// freeValues returns the numbers below the highest one of an enum that are neither used nor
// reserved.
func freeValues(e protoreflect.EnumDescriptor) (free []protoreflect.EnumNumber) {
	var highest protoreflect.EnumNumber
	for i := range e.Values().Len() {
		highest = max(highest, e.Values().Get(i).Number())
	}
	for n := protoreflect.EnumNumber(0); n < highest; n++ {
		if e.Values().ByNumber(n) == nil && !e.ReservedRanges().Has(n) {
			free = append(free, n)
		}
	}
	return free
}
