package kernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// apt runs the package manager with separate sources, lists and caches.
type apt struct {
	dir         string
	config      string
	updateError string // the error of the last update of the lists
}

// aptConfig is read after the machine's configuration, so the machine's proxies and credentials apply.
// It clears hooks, because they clean the system's cache.
const aptConfig = `Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "%[1]s/sources";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "%[1]s/empty";
Dir::State "%[1]s/state";
Dir::State::lists "%[1]s/lists";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
APT::Architecture "%[2]s";
#clear APT::Architectures;
APT::Architectures { "%[2]s"; };
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "3";
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::DEP-11-icons;
#clear Acquire::IndexTargets::deb::DEP-11-icons-small;
#clear Acquire::IndexTargets::deb::DEP-11-icons-hidpi;
#clear Acquire::IndexTargets::deb::DEP-11-icons-large;
#clear Acquire::IndexTargets::deb::Contents-deb;
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
`

func newApt(work string, r release, host osRelease) (*apt, error) {
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: %s is not installed; kernels come as Debian packages", ErrUnavailable, tool)
		}
	}
	a := &apt{dir: filepath.Join(work, "apt"), config: filepath.Join(work, "apt.conf")}
	for _, sub := range []string{"sources", "empty", "state", "lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(a.dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("create package directory: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(a.dir, "status"), nil, 0o644); err != nil {
		return nil, fmt.Errorf("create package status: %w", err)
	}
	if err := os.WriteFile(a.config, fmt.Appendf(nil, aptConfig, a.dir, r.arch()), 0o644); err != nil {
		return nil, fmt.Errorf("write package settings: %w", err)
	}
	return a, writeSources(filepath.Join(a.dir, "sources"), r, host)
}

// run runs a tool of the package manager and returns its standard output.
func (a *apt) run(ctx context.Context, tool string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, tool, append([]string{"-c", a.config}, args...)...)
	cmd.Dir = filepath.Join(a.dir, "debs")
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w: %s", tool, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

var (
	// apt-cache prints packages that the sources do not list in angle brackets.
	dependsOnImage = regexp.MustCompile(`(?m)^\s*Depends: <?linux-image-(?:unsigned-)?([0-9][^\s>]*)>?$`)
	cloudImage     = regexp.MustCompile(`(?m)^linux-image-([0-9]\S*-cloud-(?:amd64|arm64))-unsigned$`)
)

// maxVersions is the maximum number of versions of a release to try.
const maxVersions = 10

// versions returns the kernel versions of the release. The first is the distribution's default
// version. The other listed versions follow, newest first.
func (a *apt) versions(ctx context.Context, r release) ([]string, error) {
	// A source may lack one of the suites, for example for a release without updates. Therefore only a
	// missing package is an error.
	if _, err := a.run(ctx, "apt-get", "-q", "update"); err != nil {
		a.updateError = "; " + err.Error()
	}
	out, err := a.run(ctx, "apt-cache", "depends", r.meta)
	if err != nil {
		return nil, fmt.Errorf("%w: no package %s in this machine's package sources for %s: %w%s",
			ErrUnavailable, r.meta, r.suite, err, a.updateError)
	}
	m := dependsOnImage.FindStringSubmatch(out)
	if m == nil || !strings.HasPrefix(m[1], r.series) {
		return nil, fmt.Errorf("%w: package %s of %s does not lead to a %s kernel: %s%s",
			ErrUnavailable, r.meta, r.suite, r.series, strings.TrimSpace(out), a.updateError)
	}
	versions := []string{m[1]}
	if r.series == "" {
		return versions, nil
	}
	names, err := a.run(ctx, "apt-cache", "pkgnames", "linux-image-"+r.series)
	if err != nil {
		return nil, fmt.Errorf("list kernel packages: %w", err)
	}
	var others []string
	for _, m := range cloudImage.FindAllStringSubmatch(names, -1) {
		if m[1] != versions[0] {
			others = append(others, m[1])
		}
	}
	slices.SortFunc(others, func(a, b string) int { return compareVersions(b, a) })
	return append(versions, others[:min(len(others), maxVersions-1)]...), nil
}

// compareVersions compares kernel versions numerically, field by field.
func compareVersions(a, b string) int {
	numbers := func(s string) (ns []int) {
		for _, field := range strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
			n, _ := strconv.Atoi(field) // digits only; a number out of range counts as the maximum
			ns = append(ns, n)
		}
		return ns
	}
	return slices.Compare(numbers(a), numbers(b))
}

// packagesOf returns the packages of a kernel version. Since 7.0, Debian splits a kernel into the
// image, the modules, and the configuration with the list of built-in modules.
func (a *apt) packagesOf(ctx context.Context, r release, version string) ([]string, error) {
	if r.distro == ubuntu {
		return []string{"linux-image-" + version, "linux-modules-" + version}, nil
	}
	binary := "linux-binary-" + version
	names, err := a.run(ctx, "apt-cache", "pkgnames", binary)
	if err != nil {
		return nil, fmt.Errorf("list kernel packages: %w", err)
	}
	if slices.Contains(strings.Fields(names), binary) {
		return []string{binary, "linux-modules-" + version, "linux-base-" + version}, nil
	}
	return []string{"linux-image-" + version + "-unsigned"}, nil
}

// download downloads all packages and then unpacks them into tree.
func (a *apt) download(ctx context.Context, packages []string, tree string, k *Kernel) error {
	for _, name := range packages {
		if _, err := a.run(ctx, "apt-get", "-q", "download", name); err != nil {
			return err
		}
	}
	for _, name := range packages {
		if err := a.unpack(ctx, name, tree, k); err != nil {
			return err
		}
	}
	return nil
}

// unpack unpacks a downloaded package into tree and records it in k.
func (a *apt) unpack(ctx context.Context, name, tree string, k *Kernel) error {
	found, err := filepath.Glob(filepath.Join(a.dir, "debs", name+"_*.deb"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("find downloaded package %s: %d files", name, len(found))
	}
	sum, err := fileSHA256(found[0])
	if err != nil {
		return err
	}
	version, err := exec.CommandContext(ctx, "dpkg-deb", "-f", found[0], "Version").Output()
	if err != nil {
		return fmt.Errorf("read version of %s: %w", name, err)
	}
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", found[0], tree).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	k.Packages = append(k.Packages, name+"="+strings.TrimSpace(string(version)))
	k.SHA256 = append(k.SHA256, sum)
	return nil
}

func fileSHA256(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("digest package: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("digest package: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
