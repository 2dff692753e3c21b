// Command report writes the report about the experiments of the article on LoxiLB (docs/comparison.md): tables, charts and
// the data, from the results of the programs that measure. scripts/report runs them.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	from := flag.String("from", "bin/report", "`folder` with the results, or with the data.json of an earlier report")
	to := flag.String("to", "docs/report", "`folder` to write the report to")
	quick := flag.Bool("quick", false, "the results are those of the quick form")
	flag.Parse()
	if err := run(*from, *to, *quick); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(from, to string, quick bool) error {
	d, err := readData(from)
	if err != nil {
		return err
	}
	if d.Throughput == nil {
		return fmt.Errorf("results of bench/throughput are missing in %s: run scripts/report", from)
	}
	if d.Machine == "" {
		d.Machine = machine()
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("create folder: %w", err)
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return fmt.Errorf("encode data: %w", err)
	}
	page := newPage(d, quick)
	errs := []error{
		os.WriteFile(filepath.Join(to, "data.json"), append(text, '\n'), 0o644),
		os.WriteFile(filepath.Join(to, "README.md"), page.markdown(), 0o644),
	}
	for i := range page.charts {
		errs = append(errs, page.charts[i].write(to))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("report: %s charts=%d goals_held=%d goals_missed=%d goals_open=%d\n", filepath.Join(to, "README.md"), len(page.charts), page.held, page.missed, page.open)
	return nil
}

// machine names the machine: its processor, as the kernel reports it.
func machine() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	defer f.Close() //nolint:errcheck // only read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
