package feed

import (
	"hash/crc32"
	"math"
	"strings"
	"testing"

	"mapsync/docs/examples/bundling/flowpb"
)

// TestOtherTypesAreRefused: the program ends if the node's types are not those of flows.proto, and names the map and the remedy.
func TestOtherTypesAreRefused(t *testing.T) {
	accepted := func(schema string) *flowpb.SubscribeResponse {
		return &flowpb.SubscribeResponse{Message: &flowpb.SubscribeResponse_Accepted{Accepted: &flowpb.MapAccepted{Schema: []byte(schema)}}}
	}
	if err := checkAnswer(accepted("another schema"), "flows"); err == nil || !strings.Contains(err.Error(), "syncd schema export flows --config") {
		t.Errorf("other types: got error %v, want the remedy", err)
	}
	same := append([]byte("a schema"), 0, 0, 0, 0) // its last bytes make its checksum that of the file
	want := uint32(flowpb.SchemaChecksum_SCHEMA_CHECKSUM_CRC32)
	if copy(same[8:], suffix(same[:8], want)); crc32.ChecksumIEEE(same)&math.MaxInt32 != want {
		t.Fatalf("checksum: got %d, want %d", crc32.ChecksumIEEE(same), want)
	}
	for name, response := range map[string]*flowpb.SubscribeResponse{
		"same types": accepted(string(same)), "batch": {Message: &flowpb.SubscribeResponse_Batch{Batch: &flowpb.Batch{}}},
	} {
		if err := checkAnswer(response, "flows"); err != nil {
			t.Errorf("%s: got error %v, want nil", name, err)
		}
	}
}

// suffix returns the 4 bytes after which the CRC-32 of data is sum.
func suffix(data []byte, sum uint32) []byte {
	register := ^sum
	var indices [4]byte
	for i := 3; i >= 0; i-- {
		for n, entry := range crc32.IEEETable {
			if entry>>24 == register>>24 {
				indices[i], register = byte(n), (register^entry)<<8
				break
			}
		}
	}
	register = ^crc32.ChecksumIEEE(data)
	out := make([]byte, 4)
	for i, n := range indices {
		out[i] = byte(register) ^ n
		register = register>>8 ^ crc32.IEEETable[n]
	}
	return out
}
