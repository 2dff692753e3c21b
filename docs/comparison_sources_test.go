package docs

import (
	"encoding/json"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reportData are the data of the report.
type reportData struct {
	t    *testing.T
	root any
}

func readReportData(t *testing.T) reportData {
	t.Helper()
	text, err := os.ReadFile("report/data.json")
	if err != nil {
		t.Fatal(err)
	}
	d := reportData{t: t}
	if err := json.Unmarshal(text, &d.root); err != nil {
		t.Fatal(err)
	}
	return d
}

// at returns a number, by its path: names, and "name=value" for the elements of a list. Elements are separated by slashes.
func (d reportData) at(path string) float64 {
	d.t.Helper()
	at := d.root
	for _, name := range strings.Split(path, "/") {
		switch v := at.(type) {
		case map[string]any:
			at = v[name]
		case []any:
			i := slices.IndexFunc(v, func(e any) bool { return matches(e, strings.ReplaceAll(name, "%2F", "/")) })
			if i < 0 {
				d.t.Fatalf("data at %s: got no element %s, want one", path, name)
			}
			at = v[i]
		}
	}
	number, ok := at.(float64)
	if !ok {
		d.t.Fatalf("data at %s: got %v, want a number", path, at)
	}
	return number
}

// deltas returns the rate of a way to send deltas. Its name may have slashes.
func (d reportData) deltas(name string) float64 {
	d.t.Helper()
	return d.at("throughput/alternatives/name=" + strings.ReplaceAll(name, "/", "%2F") + "/deltas_per_second")
}

// matches reports whether an element of a list has all values of "name=value;name=value".
func matches(element any, conditions string) bool {
	fields, ok := element.(map[string]any)
	if !ok {
		return false
	}
	for _, condition := range strings.Split(conditions, ";") {
		name, want, _ := strings.Cut(condition, "=")
		got := fields[name]
		if n, ok := got.(float64); ok {
			got = strconv.FormatFloat(n, 'f', -1, 64)
		}
		if got != want {
			return false
		}
	}
	return true
}

// run returns the percentage of lost events of a ring, and how many times its bytes it received. offered is the events a
// second, 0 for full speed.
func (d reportData) run(pages, threads, offered string) (lost, fills float64) {
	path := "throughput/buffers/runs/buffer=ring;offered=" + offered + ";pages=" + pages + ";threads=" + threads + "/"
	size, err := strconv.ParseFloat(pages, 64)
	if err != nil {
		d.t.Fatal(err)
	}
	const eventBytes, pageBytes = 256, 4096 // as in bench/report
	events := d.at(path + "events")
	return 100 * d.at(path+"lost") / events, events * eventBytes / (size * pageBytes)
}

// printed is a README with printed outputs.
type printed struct {
	t    *testing.T
	path string
	text string
}

func readPrinted(t *testing.T, path string) printed {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return printed{t, path, string(text)}
}

// at returns the groups of a pattern as numbers.
func (p printed) at(pattern string) (numbers []float64) {
	p.t.Helper()
	groups := regexp.MustCompile(pattern).FindStringSubmatch(p.text)
	if groups == nil {
		p.t.Fatalf("%s: got no text that matches %s, want one", p.path, pattern)
	}
	for _, group := range groups[1:] {
		n, err := strconv.ParseFloat(strings.TrimSuffix(group, "%"), 64)
		if err != nil {
			p.t.Fatal(err)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// Columns of the output of the bundling example.
const (
	columnTracer = 5 + iota
	columnSyncd
	columnPrograms
	columnSyncdPrograms
	columnAll
	columnRoundTrip
)

// bundling returns the highest and the lowest sum of columns, of all runs of a method.
func (p printed) bundling(load, method string, columns ...int) []float64 {
	p.t.Helper()
	low, high := math.Inf(1), 0.0
	for line := range strings.Lines(p.text) {
		cells := strings.Fields(line)
		if len(cells) != columnRoundTrip+1 || cells[0] != load || cells[4] != method {
			continue
		}
		sum := 0.0
		for _, column := range columns {
			v, err := strconv.ParseFloat(cells[column], 64)
			if err != nil {
				p.t.Fatal(err)
			}
			sum += v
		}
		low, high = min(low, sum), max(high, sum)
	}
	if high == 0 {
		p.t.Fatalf("%s: got no runs of %s, %s, want some", p.path, load, method)
	}
	return []float64{high, low}
}
