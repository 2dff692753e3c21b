package handbook

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const page = "# Title\n\nText with `a span` and `one\nover two lines`, a [link](other.md#there), a \"quote\".\n\n" +
	"## What it's: a *test*\n\n    code --flag\n\n- one\n  more\n- two\n\nno item\n  nor this\n\n```\n# no heading\n```\n\n" +
	"### mapsync_things_total\n\n*Counter, by `map` and\n`cause` (`full`,\n`other`).* Things.\n"

func TestParsePage(t *testing.T) {
	p := parse(page)
	var titles, anchors []string
	for i := range p.Sections {
		titles, anchors = append(titles, p.Sections[i].Title), append(anchors, p.Sections[i].Anchor())
	}
	if want := []string{"", "Title", "What it's: a *test*", "mapsync_things_total"}; !cmp.Equal(titles, want) {
		t.Errorf("titles (-want +got):\n%s", cmp.Diff(want, titles))
	}
	if want := []string{"", "title", "what-its-a-test", "mapsync_things_total"}; !cmp.Equal(anchors, want) {
		t.Errorf("anchors (-want +got):\n%s", cmp.Diff(want, anchors))
	}
	first, second := p.Find("title"), p.Find("what-its-a-test")
	for what, got := range map[string][2][]string{
		"spans":  {{"a span", "one over two lines"}, Spans(first.Prose)},
		"links":  {{"other.md#there"}, Links(first.Prose)},
		"quotes": {{"quote"}, Quotes(first.Prose)},
		"code":   {{"code --flag", "# no heading"}, second.Code},
		"indent": {{"code --flag"}, second.Indented},
		"items":  {{"one more", "two"}, Items(second.Prose)},
	} {
		if !cmp.Equal(got[0], got[1]) {
			t.Errorf("%s (-want +got):\n%s", what, cmp.Diff(got[0], got[1]))
		}
	}
	if p.Find("") != nil || p.Find("nowhere") != nil {
		t.Error("Find of an unknown anchor: got a section, want nil")
	}
}

func TestMetricSections(t *testing.T) {
	metrics, err := parse(page).Metrics()
	want := map[string]Metric{"mapsync_things_total": {
		Name: "mapsync_things_total", Type: "counter", Labels: map[string][]string{"map": nil, "cause": {"full", "other"}},
	}}
	if err != nil || !cmp.Equal(metrics, want) {
		t.Errorf("metrics: got error %v, want none (-want +got):\n%s", err, cmp.Diff(want, metrics))
	}
	for what, text := range map[string]string{
		"does not begin": strings.ReplaceAll(page, "*Counter", "*Number"),
		"two sections":   page + "\n### mapsync_things_total\n\n*Gauge.*\n",
	} {
		if _, err := parse(text).Metrics(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("invalid metrics: got error %v, want an error with %q", err, what)
		}
	}
}
