package export_test

import (
	"bytes"
	"testing"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/schema/schematest"
)

func TestTable(t *testing.T) {
	var out bytes.Buffer
	for _, s := range []*schema.Schema{schematest.Conntrack(), schematest.PerCPU(), opaque()} {
		if err := export.Table(&out, s); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "table.golden", out.Bytes())
}

func opaque() *schema.Schema {
	bytes := func(size int) *schema.Message {
		return &schema.Message{Name: "m", Size: size, Fields: []schema.Field{
			{Name: "bytes", Number: 1, Size: size, Kind: schema.KindBytes, Type: "unsigned char[4]"},
		}}
	}
	return &schema.Schema{Map: "4 bytes \"of\n*/ what?\"", Opaque: true, Key: bytes(4), Value: bytes(4)}
}
