package docs

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mapsync/docs/examples/bundling/trace"
	"mapsync/internal/handbook"
	"mapsync/syncd/config"
)

// measured maps the pages with outputs of measurements to the folders of the programs that print them.
var measured = map[string][]string{
	"figures.md":                  {"../bench/throughput", "../syncd/capture"},
	"examples/turn/README.md":     {"examples/turn/measure"},
	"examples/bundling/README.md": {"../bench/bundling", "examples/bundling/trace"},
	"examples/counters/README.md": {"../bench/counters", "examples/counters"},
	"../bench/jitter/README.md":   {"../bench/jitter", "../syncd/kmap"},
}

var (
	// figures matches the line of figures of a measurement.
	figures = regexp.MustCompile(`^\w+: kernel=`)
	// clusterLine matches the lines of the table of syncd watch --cluster.
	clusterLine = regexp.MustCompile(`^(KEY|[a-z]+=\S+ .*) {2,}`)
	letters     = regexp.MustCompile(`[[:alpha:]]`)
)

// TestMeasuredOutputs compares the tables and the lines of figures on the pages with the formats in the
// programs that print them: columns, names of rows and keys. It measures nothing.
func TestMeasuredOutputs(t *testing.T) {
	for path, dirs := range measured {
		f, found := readFormats(t, dirs...), 0
		for _, line := range outputLines(t, path) {
			var err error
			switch {
			case clusterLine.MatchString(line) || !letters.MatchString(line):
				continue
			case figures.MatchString(line):
				err = f.checkFigures(line)
			case len(column.Split(strings.TrimSpace(line), -1)) > 1:
				err = f.checkRow(line)
			default:
				continue
			}
			found++
			if err != nil {
				t.Errorf("%s: got %v, want no error", path, err)
			}
		}
		if found < 5 {
			t.Errorf("%s: got %d lines of tables and figures, want at least 5", path, found)
		}
	}
}

// outputLines returns the lines of a page's code blocks that have no language, or the language text.
func outputLines(t *testing.T, path string) (lines []string) {
	t.Helper()
	page, err := handbook.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range page.Sections {
		s := &page.Sections[i]
		lines = append(lines, s.Indented...)
		for _, b := range s.Blocks {
			if b.Language == "" || b.Language == "text" {
				lines = append(lines, strings.Split(b.Text, "\n")...)
			}
		}
	}
	return lines
}

// TestClusterTable compares the table of syncd watch --cluster in the example with the format of syncd: the
// columns are two for each counter of the first line.
func TestClusterTable(t *testing.T) {
	f := readFormats(t, "../syncd")
	for _, text := range []string{"keys %d, nodes %d", ", %s %s/s", "KEY\tOWNER", "\t%[1]s\t%[1]s/s"} {
		if !slices.Contains(f.texts, text) {
			t.Errorf("format of syncd watch --cluster: got no %q, want the formats of this test", text)
		}
	}
	var want []string // the cells of the header
	rows := 0
	for _, line := range outputLines(t, "examples/bundling/README.md") {
		cells := column.Split(line, -1)
		switch {
		case strings.HasPrefix(line, "keys "):
			want = []string{"KEY", "OWNER"}
			for _, part := range strings.Split(line, ", ")[2:] {
				name := strings.ToUpper(strings.Fields(part)[0])
				want = append(want, name, name+"/s")
			}
		case cells[0] == "KEY" && !slices.Equal(cells, want):
			t.Errorf("columns: got %q, want %q", cells, want)
		case clusterLine.MatchString(line):
			rows++
			if len(cells) != len(want) {
				t.Errorf("%q: got %d columns, want %d", line, len(cells), len(want))
			}
		}
	}
	if rows < 2 {
		t.Errorf("rows: got %d, want a header and at least one row", rows)
	}
}

// TestObserverOutput checks that the observer's output on the page has the fields that the example prints.
func TestObserverOutput(t *testing.T) {
	var text string
	for _, line := range outputLines(t, "examples/bundling/README.md") {
		if strings.HasPrefix(line, `{"`) || strings.HasPrefix(line, `"`) {
			text += line
		}
	}
	var owners map[string]trace.Sums
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&owners); err != nil {
		t.Fatalf("owners on the page: got error %v, want fields of the example\n%s", err, text)
	}
	again, err := json.Marshal(owners)
	if err != nil || string(again) != text {
		t.Errorf("owners: error %v\n--- page\n%s\n--- program, want the same\n%s", err, text, again)
	}
}

var (
	sample = regexp.MustCompile(`^(\w+)\{(.*)\} [\d.e+]+$`)
	label  = regexp.MustCompile(`(\w+)="[^"]*"`)
	record = regexp.MustCompile(`^\{(.*)\} \{(.*)\} owner=\w+ changed=\S+$`)
	field  = regexp.MustCompile(`(\w+)=`)
)

// TestCounterOutputs checks that the samples on the page have the names and labels of the example's settings,
// and the records the fields of its types.
func TestCounterOutputs(t *testing.T) {
	text, err := os.ReadFile("examples/counters/syncd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	settings := config.Default()
	if err := settings.Parse(text); err != nil {
		t.Fatal(err)
	}
	samples, records := 0, 0
	for _, line := range outputLines(t, "examples/counters/README.md") {
		if m := sample.FindStringSubmatch(line); m != nil {
			samples++
			name, labels := settings.Metrics[0].Counters[0].Name, settings.Metrics[0].LabelNames()
			if got := firsts(label, m[2]); m[1] != name || !slices.Equal(got, labels) {
				t.Errorf("%q: got labels %q, want the name %s and labels %q", line, got, name, labels)
			}
		}
		if m := record.FindStringSubmatch(line); m != nil {
			records++
			checkFields(t, firsts(field, m[1]+" "+m[2]), "examples/counters/bpf/accounting.h")
		}
	}
	if samples == 0 || records == 0 {
		t.Errorf("got %d samples and %d records, want some of each", samples, records)
	}
}

// checkFields checks that a header has the fields.
func checkFields(t *testing.T, names []string, header string) {
	t.Helper()
	types, err := os.ReadFile(header)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !regexp.MustCompile(`\b` + name + `\b`).Match(types) {
			t.Errorf("record on the page: got a field %s, want those of %s", name, header)
		}
	}
}

// firsts returns the first group of each match.
func firsts(re *regexp.Regexp, text string) (list []string) {
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}
