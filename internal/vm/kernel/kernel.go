// Package kernel fetches distribution kernels as packages and stores them in a cache outside the
// repository. It uses the machine's package manager with the machine's own sources and the name of
// another release. It does not change the system's package lists, caches and settings.
package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// ErrUnavailable is wrapped by every error that means that a kernel is not available on this machine.
var ErrUnavailable = errors.New("kernel unavailable")

// Kernel is one kernel in the cache, identified by release and recorded by version.
type Kernel struct {
	// Release is the requested name, the series and the architecture unless it is amd64: "6.1",
	// "6.12/arm64".
	Release string
	// Version is the output of uname -r: "6.1.0-56-cloud-amd64".
	Version string
	// Packages are the packages of the kernel, "name=version".
	Packages []string
	// SHA256 are the hexadecimal digests of the package files, in the order of Packages.
	SHA256 []string
	// Fetched is the time of the download.
	Fetched time.Time
	// Dir is the directory of the unpacked kernel.
	Dir string
	// Parameter is added to the kernel command line: "preempt=full", or empty.
	Parameter string `json:"-"`
}

// Arch returns the architecture: amd64 or arm64.
func (k *Kernel) Arch() string { return archOf(k.Release) }

// Image returns the path of the bootable image.
func (k *Kernel) Image() string { return k.file("vmlinuz") }

// Config returns the path of the build configuration.
func (k *Kernel) Config() string { return k.file("config") }

// file returns the path of a file of the kernel: below boot, or since 7.0 beside the modules.
func (k *Kernel) file(name string) string {
	boot := filepath.Join(k.Dir, "boot", name+"-"+k.Version)
	if _, err := os.Stat(boot); err == nil {
		return boot
	}
	return filepath.Join(k.Dir, "lib", "modules", k.Version, name)
}

// String returns a description of the kernel for a log line.
func (k *Kernel) String() string {
	name := k.Release
	if k.Parameter != "" {
		name += "/" + k.Parameter
	}
	return fmt.Sprintf("%s (%s, %s)", name, k.Version, strings.Join(k.Packages, " "))
}

// release is a kernel that a user can request.
type release struct {
	name   string // the name that the user enters, and the key in the cache
	distro string // "debian" or "ubuntu"
	suite  string // the distribution release that contains it
	meta   string // the package that depends on its newest version
	series string // required prefix of the version; empty: any version
}

// arch returns the architecture of the kernel.
func (r *release) arch() string { return archOf(r.name) }

// file returns the name of the release in file names.
func (r *release) file() string { return fileName(r.name) }

func fileName(release string) string { return strings.ReplaceAll(release, "/", "-") }

func archOf(release string) string {
	if strings.HasSuffix(release, arm64Suffix) {
		return arm64
	}
	return amd64
}

const (
	debian    = "debian"
	ubuntu    = "ubuntu"
	amd64     = "amd64"
	arm64     = "arm64"
	cloudMeta = "linux-image-cloud-amd64"

	cloudMetaARM = "linux-image-cloud-arm64"
	arm64Suffix  = "/" + arm64
)

// releases are the kernels of the test matrix: one series for each Debian release, and the current
// kernel of Debian testing.
var releases = []release{
	{"5.10", debian, "bullseye", cloudMeta, "5.10."},
	{"6.1", debian, "bookworm", cloudMeta, "6.1."},
	{"6.12", debian, "trixie", cloudMeta, "6.12."},
	{"testing", debian, "testing", cloudMeta, ""},
	{"6.1" + arm64Suffix, debian, "bookworm", cloudMetaARM, "6.1."},
	{"6.12" + arm64Suffix, debian, "trixie", cloudMetaARM, "6.12."},
}

// HostRelease is the name of the distribution's own kernel.
const HostRelease = "host"

// Releases returns the names of the test matrix, oldest first, arm64 last.
func Releases() []string {
	var names []string
	for _, r := range releases {
		names = append(names, r.name)
	}
	return names
}

// parameterPattern matches one kernel parameter.
var parameterPattern = regexp.MustCompile(`^[\w.-]+(=[\w.,:-]+)?$`)

// splitName splits "6.1/preempt=full" into the release and an optional kernel parameter. The release
// includes the architecture: "6.12/arm64".
func splitName(name string) (release, parameter string, err error) {
	release, parameter, found := strings.Cut(name, "/")
	if arch, rest, more := strings.Cut(parameter, "/"); arch == arm64 {
		release, parameter, found = release+arm64Suffix, rest, more
	}
	if found && !parameterPattern.MatchString(parameter) {
		return "", "", fmt.Errorf("find kernel %q: %q is not a kernel parameter", name, parameter)
	}
	return release, parameter, nil
}

// findRelease returns the release for a name on a host.
func findRelease(name string, host osRelease) (release, error) {
	if name == HostRelease {
		return hostRelease(host)
	}
	i := slices.IndexFunc(releases, func(r release) bool { return r.name == name })
	if i < 0 {
		return release{}, fmt.Errorf("find kernel %q: not one of %s, %s",
			name, strings.Join(Releases(), ", "), HostRelease)
	}
	return releases[i], nil
}

func hostRelease(host osRelease) (release, error) {
	if host.id == debian {
		i := slices.IndexFunc(releases, func(r release) bool { return r.suite == host.codename })
		if i >= 0 {
			return releases[i], nil
		}
	}
	meta := map[string]string{debian: cloudMeta, ubuntu: "linux-image-virtual"}[host.id]
	if meta == "" || host.codename == "" {
		return release{}, fmt.Errorf("%w: the distribution's own kernel is known for Debian and Ubuntu only, "+
			"this is %q; name one of %s", ErrUnavailable, host.pretty, strings.Join(Releases(), ", "))
	}
	return release{host.id + "-" + host.codename, host.id, host.codename, meta, ""}, nil
}

// osRelease holds the fields of the machine's os-release(5) file.
type osRelease struct{ id, codename, pretty string }

func readOSRelease(path string) (osRelease, error) {
	f, err := os.Open(path)
	if err != nil {
		return osRelease{}, fmt.Errorf("read distribution: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	fields := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), "="); ok {
			fields[key] = strings.Trim(value, `"'`)
		}
	}
	if err := lines.Err(); err != nil {
		return osRelease{}, fmt.Errorf("read distribution: %w", err)
	}
	return osRelease{fields["ID"], fields["VERSION_CODENAME"], fields["PRETTY_NAME"]}, nil
}
