// Stylecheck checks the texts and identifiers of the tracked files against docs/style.md. It prints the
// rate of sentences to be rewritten and exits with 1 if the rate is above its limit, a name has a replaced
// term, a failure message of a test does not say what was wanted, or a logged warning or error has no hint.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"mapsync/internal/style"
)

const (
	maxRate     = 0.5 // per 1,000 words, all files
	maxDocsRate = 0.3 // README and docs
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "stylecheck:", err)
		os.Exit(1)
	}
}

func run() error {
	out, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		return fmt.Errorf("list files: %w", err)
	}
	var all, docs style.Report
	var banned, messages, hints []style.Finding
	for file := range strings.Lines(string(out)) {
		file = strings.TrimSpace(file)
		if !checked(file) {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read file: %w", err)
		}
		if err := all.Add(file, data); err != nil {
			return err
		}
		if file == "README.md" || strings.HasPrefix(file, "docs/") {
			if err := docs.Add(file, data); err != nil {
				return err
			}
		}
		found, err := style.Banned(file, data)
		if err != nil {
			return err
		}
		banned = append(banned, found...)
		if found, err = style.Messages(file, data); err != nil {
			return err
		}
		messages = append(messages, found...)
		if found, err = style.Hints(file, data); err != nil {
			return err
		}
		hints = append(hints, found...)
	}
	for _, f := range slices.Concat(all.Sentences, banned, messages, hints) {
		fmt.Println(f)
	}
	fmt.Printf("%.2f sentences to rewrite per 1,000 words (%.2f in README and docs), %d names with replaced terms, %d failure messages without the wanted value, %d log messages without hint\n",
		all.Rate(), docs.Rate(), len(banned), len(messages), len(hints))
	if all.Rate() > maxRate || docs.Rate() > maxDocsRate || len(banned)+len(messages)+len(hints) > 0 {
		return fmt.Errorf("want at most %.1f (%.1f) sentences and no such name or message: see docs/style.md", maxRate, maxDocsRate)
	}
	return nil
}

// checked reports whether a file has texts of the project. The package style itself has the replaced words.
func checked(file string) bool {
	switch filepath.Ext(file) {
	case ".go", ".c", ".h", ".md", ".proto", ".yaml", ".yml", ".json", ".sh", "":
	default:
		return false
	}
	return !strings.HasSuffix(file, ".pb.go") && !strings.Contains(file, "_bpfel.go") && !strings.HasPrefix(file, "internal/style/") && file != "docs/style.md"
}
