package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// SourcesEnv names a file with package sources (one-line or deb822 style) that replaces the machine's
// own sources. With a Debian source in it, an Ubuntu machine can fetch the Debian kernels. Its suites
// may belong to any Debian release.
const SourcesEnv = "MAPSYNC_APT_SOURCES"

// writeSources copies the machine's package sources into dir. It replaces the machine's suites by
// those of the requested release.
func writeSources(dir string, r release, host osRelease) error {
	files, err := sourceFiles(r, host)
	if err != nil {
		return err
	}
	suites := suiteMap(r, host)
	kept := 0
	for i, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read package sources: %w", err)
		}
		ext, rewrite := ".list", rewriteList
		if filepath.Ext(path) == ".sources" {
			ext, rewrite = ".sources", rewriteDeb822
		}
		out := rewrite(string(b), suites)
		if out == "" {
			continue
		}
		kept++
		name := filepath.Join(dir, fmt.Sprintf("%02d%s", i, ext))
		if err := os.WriteFile(name, []byte(out), 0o644); err != nil {
			return fmt.Errorf("write package sources: %w", err)
		}
	}
	if kept == 0 {
		return fmt.Errorf("%w: none of the package sources %s has a %s suite with component main",
			ErrUnavailable, strings.Join(files, " "), r.distro)
	}
	return nil
}

func sourceFiles(r release, host osRelease) ([]string, error) {
	if path := os.Getenv(SourcesEnv); path != "" {
		return []string{path}, nil
	}
	if host.id != r.distro {
		return nil, fmt.Errorf("%w: kernel %s comes with %s, and this machine's package sources are those of %q; "+
			"set %s to a file with a %s source, or use the distribution's own kernel (%s)",
			ErrUnavailable, r.name, r.distro, host.pretty, SourcesEnv, r.distro, HostRelease)
	}
	var files []string
	for _, pattern := range []string{"/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("find package sources: %w", err)
		}
		files = append(files, found...)
	}
	return files, nil
}

// suiteMap returns the requested suite for each suite name of the same distribution. It omits
// backports, proposed and other vendors' suites.
func suiteMap(r release, host osRelease) map[string]string {
	from := []string{host.codename}
	if r.distro == debian {
		from = append(from, "stable", "oldstable", "oldoldstable")
		for _, known := range releases {
			from = append(from, known.suite)
		}
	}
	suites := map[string]string{}
	for _, name := range from {
		suites[name] = r.suite
		suites[name+"-updates"] = r.suite + "-updates"
		suites[name+"-security"] = r.suite + "-security"
		suites[name+"/updates"] = r.suite + "-security" // until Debian 10
	}
	return suites
}

// rewriteList rewrites one-line style sources. It omits lines without a suite in the map or without
// the component main.
func rewriteList(text string, suites map[string]string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "deb" {
			continue
		}
		// deb [option=value option=value] uri suite component...
		at := 1
		if len(fields) > 1 && strings.HasPrefix(fields[1], "[") {
			for at < len(fields) && !strings.HasSuffix(fields[at], "]") {
				at++
			}
			at++
		}
		if at+2 >= len(fields) || !slices.Contains(fields[at+2:], "main") {
			continue
		}
		if suite, ok := suites[strings.TrimSuffix(fields[at+1], "/")]; ok {
			fmt.Fprintf(&out, "%s %s main\n", strings.Join(fields[:at+1], " "), suite)
		}
	}
	return out.String()
}

// rewriteDeb822 rewrites deb822 style sources. It preserves all fields except types, suites and
// components, because keys may be embedded.
func rewriteDeb822(text string, suites map[string]string) string {
	var out strings.Builder
	for _, stanza := range splitStanzas(text) {
		if s := rewriteStanza(stanza, suites); s != "" {
			out.WriteString(s + "\n")
		}
	}
	return out.String()
}

// splitStanzas returns the fields of each stanza, with continuation lines and without comments.
func splitStanzas(text string) [][]string {
	var stanzas [][]string
	var current []string
	for line := range strings.Lines(text + "\n\n") {
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "":
			if len(current) > 0 {
				stanzas = append(stanzas, current)
			}
			current = nil
		case line[0] == '#':
		case (line[0] == ' ' || line[0] == '\t') && len(current) > 0:
			current[len(current)-1] += "\n" + line
		default:
			current = append(current, line)
		}
	}
	return stanzas
}

func rewriteStanza(fields []string, suites map[string]string) string {
	var out strings.Builder
	seen := map[string]bool{}
	for _, field := range fields {
		key, value, _ := strings.Cut(field, ":")
		words := strings.Fields(value)
		switch strings.ToLower(key) {
		case "enabled":
			if len(words) == 1 && slices.Contains([]string{"no", "false", "off", "0", "without", "disable"}, words[0]) {
				return ""
			}
			continue
		case "types":
			seen["types"] = slices.Contains(words, "deb")
			field = "Types: deb"
		case "components":
			seen["components"] = slices.Contains(words, "main")
			field = "Components: main"
		case "suites":
			var to []string
			for _, word := range words {
				if suite, ok := suites[strings.TrimSuffix(word, "/")]; ok && !slices.Contains(to, suite) {
					to = append(to, suite)
				}
			}
			seen["suites"] = len(to) > 0
			field = "Suites: " + strings.Join(to, " ")
		}
		out.WriteString(field + "\n")
	}
	if !seen["types"] || !seen["components"] || !seen["suites"] {
		return ""
	}
	return out.String()
}
