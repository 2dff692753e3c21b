package filter_test

import (
	"bytes"
	"slices"
	"testing"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
	"mapsync/syncd/schema/filter"
	"mapsync/syncd/schema/schematest"

	"pgregory.net/rapid"
)

// links are interfaces by index.
var links = indexedLinks{schematest.Links{1: "eth1", 2: "eth2", 3: "eth3"}}

// indexedLinks finds the index of a name, too.
type indexedLinks struct{ schematest.Links }

func (l indexedLinks) Index(name string) (uint32, bool) {
	for index, n := range l.Links {
		if n == name {
			return index, true
		}
	}
	return 0, false
}

func parseAll(t interface{ Fatal(...any) }, s *schema.Schema, expressions []string) (list []*filter.Filter) {
	for _, expression := range expressions {
		f, err := filter.Parse(s, expression)
		if err != nil {
			t.Fatal(err)
		}
		f.Links = links
		list = append(list, f)
	}
	return list
}

func TestKeys(t *testing.T) {
	field := func(name string, offset, size int, kind schema.Kind, roles schema.Role, typ string) schema.Field {
		return schema.Field{Name: name, Number: offset + 1, Offset: offset, Size: size, Kind: kind, Roles: roles, Type: typ}
	}
	key := func(size int, fields ...schema.Field) *schema.Schema {
		return &schema.Schema{Map: "m", Key: &schema.Message{Size: size, Fields: fields}, Value: &schema.Message{Size: 1, Fields: []schema.Field{
			field("v", 0, 1, schema.KindUint, 0, "unsigned char"),
		}}}
	}
	bits := field("flag", 0, 1, schema.KindUint, 0, "unsigned char")
	bits.BitOffset, bits.BitSize = 2, 3
	signed := field("n", 0, 2, schema.KindSint, 0, "short")
	port := field("port", 0, 2, schema.KindUint, schema.RoleBE, "unsigned short")
	address := field("addr", 0, 16, schema.KindBytes, schema.RoleIPv6, "unsigned int[4]")
	array := field("a", 0, 1, schema.KindUint, 0, "unsigned char[2]")
	array.Count = 2
	for name, test := range map[string]struct {
		schema *schema.Schema
		where  []string
		want   [][]byte
		only   bool
	}{
		"opaque":           {schema.FromSizes("m", 3, 1), []string{"key.bytes=0102"}, [][]byte{{1, 2, 0}}, true},
		"signed":           {key(2, signed), []string{"n=-2"}, [][]byte{{0xfe, 0xff}}, true},
		"network order":    {key(2, port), []string{"port=443"}, [][]byte{{1, 187}}, true},
		"padding":          {key(4, port), []string{"port=443"}, [][]byte{{1, 187, 0, 0}}, false},
		"bits":             {key(1, bits), []string{"flag=5"}, [][]byte{{5 << 2}}, false},
		"IPv6 address":     {key(16, address), []string{"addr=fd00::1"}, [][]byte{append([]byte{0xfd}, append(make([]byte, 14), 1)...)}, true},
		"prefix":           {key(16, address), []string{"addr=fd00::/64"}, nil, false},
		"not equal":        {key(2, port), []string{"port!=443"}, nil, false},
		"at least":         {key(2, port), []string{"port>=443"}, nil, false},
		"value":            {key(2, port), []string{"v=1"}, nil, false},
		"none":             {key(2, port), nil, nil, false},
		"array":            {key(2, array), []string{"a=1"}, nil, false},
		"false":            {key(1, field("b", 0, 1, schema.KindBool, 0, "_Bool")), []string{"b=false"}, [][]byte{{0}}, true},
		"true":             {key(1, field("b", 0, 1, schema.KindBool, 0, "_Bool")), []string{"b=true"}, nil, false},
		"float":            {key(4, field("f", 0, 4, schema.KindFloat, 0, "float")), []string{"f=1"}, nil, false},
		"interface":        {key(4, field("i", 0, 4, schema.KindIfname, schema.RoleIfindex, "int")), []string{"i=eth2"}, [][]byte{{2, 0, 0, 0}}, true},
		"no interface":     {key(4, field("i", 0, 4, schema.KindIfname, schema.RoleIfindex, "int")), []string{"i=eth9"}, nil, false},
		"interface number": {key(4, field("i", 0, 4, schema.KindIfname, schema.RoleIfindex, "int")), []string{"i=9"}, [][]byte{{9, 0, 0, 0}}, true},
		"one of two":       {key(3, port, field("zone", 2, 1, schema.KindUint, 0, "unsigned char")), []string{"port=443"}, nil, false},
	} {
		keys, only := filter.Keys(test.schema, parseAll(t, test.schema, test.where))
		if !slices.EqualFunc(keys, test.want, bytes.Equal) || only != test.only {
			t.Errorf("%s: got keys %v, only %t, want %v, %t", name, keys, only, test.want, test.only)
		}
	}
	// An IPv4 address has two representations.
	s := key(16, address)
	keys, only := filter.Keys(s, parseAll(t, s, []string{"addr=10.0.0.1"}))
	if len(keys) != 2 || !only || keys[0][0] != 10 || keys[1][12] != 10 || keys[1][10] != 0xff {
		t.Errorf("IPv4 address: got keys %v, only %t, want both representations, true", keys, only)
	}
}

// Each entry that meets the filters is among their keys, if these are the only ones.
func TestKeysAreComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := schematest.DrawSchema(t)
		printer := export.NewPrinter(s, links)
		key, other := schematest.DrawStruct(t, s.Key), schematest.DrawStruct(t, s.Key)
		var where []string
		for _, name := range s.FieldNames() {
			path, err := s.Path(name)
			if err != nil {
				t.Fatal(err)
			}
			array := slices.ContainsFunc(path.Fields, func(f *schema.Field) bool { _, count := f.Elements(); return count >= 0 })
			if path.Key && !array {
				where = append(where, name+"="+string(printer.AppendField(nil, &path, key)))
			}
		}
		filters := parseAll(t, s, where)
		keys, only := filter.Keys(s, filters)
		matches := func(key []byte) bool {
			return !slices.ContainsFunc(filters, func(f *filter.Filter) bool { return !f.Match(key, make([]byte, s.Value.Size), nil) })
		}
		for _, k := range [][]byte{key, other} {
			among := slices.ContainsFunc(keys, func(one []byte) bool { return bytes.Equal(one, k) })
			if matches(k) && keys != nil && !among {
				t.Fatalf("where %q: got keys %x, want %x among them", where, keys, k)
			}
		}
		if only && keys == nil {
			t.Fatalf("where %q: got no keys as the only ones, want keys", where)
		}
		for _, k := range keys {
			if !matches(k) && len(keys) == 1 {
				t.Fatalf("where %q: got key %x, want one that matches", where, k)
			}
		}
	})
}
