package printable_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"testing/iotest"
	"unicode"
	"unicode/utf8"

	"mapsync/printable"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"café 東京 €", "café 東京 €"},
		{"\x1b]0;title\a", `\u001b]0;title\u0007`},
		{"a\nb\tc\r", `a\u000ab\u0009c\u000d`},
		{"\u009b31m\x7f", `\u009b31m\u007f`},
		{"a\u202eb\u2066\u200b\ufeff", `a\u202eb\u2066\u200b\ufeff`},
		{"\U000e0041", `\udb40\udc41`},
		{"\u00a0\u2028", `\u00a0\u2028`},
		{"a\xffb\xc3", "a\ufffdb\ufffd"},
	} {
		if got := printable.Text(c.text); got != c.want {
			t.Errorf("text %+q: got %q, want %q", c.text, got, c.want)
		}
		if got := printable.Is(c.text); got != (c.text == c.want) {
			t.Errorf("%+q: got printable %t, want %t", c.text, got, !got)
		}
	}
	if !printable.IsName("lb-1.example") || printable.IsName("lb1 owner=lb2") || printable.IsName("lb\n1") {
		t.Error("names: got a wrong answer, want only a printable text without spaces to be one")
	}
}

func TestTruncated(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"abcd", "abcd"},
		{"abcde", "abcd..."},
		{"abcé", "abc..."},
		{"a\nb", `a\u000ab`},
	} {
		if got := printable.Truncated(c.text, 4); got != c.want {
			t.Errorf("truncated %q: got %q, want %q", c.text, got, c.want)
		}
	}
}

// failing is a writer that fails.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, iotest.ErrTimeout }

func TestWriter(t *testing.T) {
	text := "a\x1b[2J\té\u202e\xff\U000e0041\xc3\n東"
	const want = `a\u001b[2J` + "\té" + `\u202e` + "\ufffd" + `\udb40\udc41` + "\ufffd\n東"
	for _, step := range []int{1, 2, 3, len(text)} {
		var out bytes.Buffer
		w := printable.NewWriter(&out)
		for p := []byte(text); len(p) > 0; p = p[min(step, len(p)):] {
			if n, err := w.Write(p[:min(step, len(p))]); n != min(step, len(p)) || err != nil {
				t.Fatalf("write: got %d, error %v, want %d", n, err, min(step, len(p)))
			}
		}
		if out.String() != want {
			t.Errorf("written by %d bytes: got %q, want %q", step, out.String(), want)
		}
	}
	if _, err := printable.NewWriter(failing{}).Write([]byte("a")); err == nil {
		t.Error("write to a broken output: got no error, want one")
	}
}

// FuzzWriter checks that the output has no characters that are not printable, that it is as one Text line by line, and
// that JSON keeps its meaning.
func FuzzWriter(f *testing.F) {
	f.Add("a\x1b[2J\té\u202e\xff\U000e0041\xc3\n東", 3)
	f.Fuzz(func(t *testing.T, text string, step int) {
		encoded, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		step = max(step, 1)
		var out bytes.Buffer
		w := printable.NewWriter(&out)
		for p := encoded; len(p) > 0; p = p[min(step, len(p)):] {
			_, _ = w.Write(p[:min(step, len(p))])
		}
		for _, r := range out.String() {
			if !unicode.IsPrint(r) {
				t.Fatalf("JSON of %q: got %q, want only printable characters", text, out.String())
			}
		}
		var plain, printed string
		if err := json.Unmarshal(out.Bytes(), &printed); err != nil {
			t.Fatalf("JSON of %q: got error %v, want valid JSON", text, err)
		}
		if err := json.Unmarshal(encoded, &plain); err != nil || printed != plain {
			t.Fatalf("JSON of %q: got %q, want the same text", text, printed)
		}
		if one := printable.Text(text); !printable.Is(one) || utf8.ValidString(text) && printable.Is(text) && one != text {
			t.Fatalf("text %q: got %q, want printable characters, and a printable text to stay", text, one)
		}
	})
}
