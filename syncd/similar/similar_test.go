package similar

import "testing"

func TestHint(t *testing.T) {
	names := []string{"ct_map", "svc_map", "lb1", "lb2", "long_name_of_a_map"}
	for unknown, want := range map[string]string{
		"ct_mp": "ct_map", "CT_MAP": "ct_map", "ctmap": "ct_map", "svc": "svc_map", "lb": "lb1", "lb3": "lb1", "LB2": "lb2",
		"long_nam_of_map": "long_name_of_a_map", "": "", "x": "", "backends": "", "ab1": "lb1", "ba1": "",
	} {
		if want != "" {
			want = " (did you mean " + want + "?)"
		}
		if got := Hint(unknown, names); got != want {
			t.Errorf("hint for %q: got %q, want %q", unknown, got, want)
		}
	}
	if got := Hint("ct", nil); got != "" {
		t.Errorf("hint without names: got %q, want none", got)
	}
}

func TestEdits(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"dport", "dprt", 1}, {"sport", "dport", 1}} {
		if got := Edits(test.a, test.b); got != test.want {
			t.Errorf("edits of %q and %q: got %d, want %d", test.a, test.b, got, test.want)
		}
	}
}
