// Stylecheck checks the texts and identifiers of the tracked files against docs/style.md, and their code against
// limits of length. It prints the rate of sentences to be rewritten and exits with 1 if the rate is above its limit, a
// name has a replaced term, a failure message of a test does not say what was wanted, a logged warning or error has no
// hint, functions or files are too long, or a sleep of a test has no reason.
package main

import (
	"errors"
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

	maxLength = 31 // lines, 95th percentile of the functions
	offenders = 20 // longest functions that are printed if they are too long
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
	files := strings.Split(strings.TrimSpace(string(out)), "\n")
	code := slices.DeleteFunc(slices.Clone(files), func(file string) bool {
		return !slices.Contains([]string{".go", ".c", ".h"}, filepath.Ext(file))
	})
	return errors.Join(checkTexts(files), checkLengths(code), checkSleeps(code))
}

func checkTexts(files []string) error {
	var all, docs style.Report
	var banned, messages, hints []style.Finding
	for _, file := range files {
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

// checkLengths checks the lengths of functions, of all files and of those of the product, and of files.
func checkLengths(files []string) error {
	var all, product style.Lengths
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read file: %w", err)
		}
		if err := all.Add(file, data); err != nil {
			return err
		}
		if strings.HasPrefix(file, "syncd/") {
			if err := product.Add(file, data); err != nil {
				return err
			}
		}
	}
	for _, f := range all.Files {
		fmt.Println(f)
	}
	long := false
	for _, l := range []*style.Lengths{&all, &product} {
		if l.Percentile95() > maxLength {
			long = true
			for _, f := range l.Longest(offenders) {
				fmt.Println(f)
			}
		}
	}
	fmt.Printf("95th percentile of the functions: %d lines (%d in syncd), %d files of more than %d lines\n",
		all.Percentile95(), product.Percentile95(), len(all.Files), style.MaxFileLines)
	if long || len(all.Files) > 0 {
		return fmt.Errorf("want at most %d lines and no such file: split the longest functions and files", maxLength)
	}
	return nil
}

// checkSleeps checks that each sleep of a test has a reason.
func checkSleeps(files []string) error {
	var bare []style.Finding
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read file: %w", err)
		}
		found, err := style.Sleeps(file, data)
		if err != nil {
			return err
		}
		bare = append(bare, found...)
	}
	for _, f := range bare {
		fmt.Println(f)
	}
	if len(bare) > 0 {
		return fmt.Errorf("%d sleeps of tests have no reason: see CONTRIBUTING.md", len(bare))
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
	return !style.Generated(file) && !strings.HasPrefix(file, "internal/style/") && file != "docs/style.md"
}
