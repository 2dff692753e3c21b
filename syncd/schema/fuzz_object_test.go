package schema

import (
	"bytes"
	"errors"
	"os"
	"testing"
)

// FuzzObject reads arbitrary bytes as a BPF object file, as the setting schema names it. It must neither panic nor loop endlessly,
// and every resulting schema must be valid.
func FuzzObject(f *testing.F) {
	object, err := os.ReadFile(layouts)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(object)
	f.Add(bytes.ReplaceAll(object, []byte("\x00opaque\x00"), []byte("\x00\x1b]0;o\n\x00")))
	f.Add(object[:64])
	f.Fuzz(func(t *testing.T, object []byte) {
		spec, err := loadObject(bytes.NewReader(object))
		if err != nil {
			return
		}
		list, err := fromSpec(spec)
		if err != nil && !errors.Is(err, ErrType) {
			t.Fatalf("schemas of an object: got error %v, want ErrType", err)
		}
		for _, s := range list {
			if err := s.Check(); err != nil {
				t.Fatalf("check schema: %v", err)
			}
		}
	})
}
