package daemon_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"mapsync/syncd/daemon"
)

// identities are the fields that count nanoseconds since 1970, and therefore exceed 2^53.
var identities = []string{"Incarnation", "Version"}

// large sets each of these fields below v to a value above 2^53. It fills each list with one
// element.
func large(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		large(v.Elem())
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`"text"`))
		} else {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			large(v.Index(0))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				continue
			}
			if f.Type.Kind() == reflect.Uint64 && strings.Contains(strings.Join(identities, " "), f.Name) {
				v.Field(i).SetUint(1<<60 + 1)
			} else {
				large(v.Field(i))
			}
		}
	}
}

// JSON readers that hold numbers as floating point read each integer exactly, and so does the
// client.
func TestJSONIntegersAreExact(t *testing.T) {
	for _, v := range []any{&daemon.Status{}, &daemon.Entry{}, &daemon.DiffEntry{}, &daemon.Handover{}, &daemon.Readiness{}} {
		large(reflect.ValueOf(v).Elem())
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		for token, err := decoder.Token(); err == nil; token, err = decoder.Token() {
			if n, ok := token.(json.Number); ok && len(n) > len("9007199254740992") {
				t.Errorf("%T: got the number %s in %s, want a string", v, n, text)
			}
		}
		again := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		if err := json.Unmarshal(text, again); err != nil || !reflect.DeepEqual(v, again) {
			t.Errorf("%T: decoded as %+v, error %v, want the encoded value", v, again, err)
		}
	}
	text, _ := json.Marshal(daemon.Status{Incarnation: 1763752000000000001})
	if !strings.Contains(string(text), `"incarnation":"1763752000000000001"`) {
		t.Errorf("status: got %s, want the incarnation as a string", text)
	}
}
