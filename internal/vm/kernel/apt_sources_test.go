package kernel

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var bookworm = osRelease{debian, "bookworm", "Debian GNU/Linux 12 (bookworm)"}

func testRelease(t *testing.T, name string) release {
	t.Helper()
	r, err := findRelease(name, bookworm)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRewriteList(t *testing.T) {
	const in = `# a comment
deb http://mirror/debian bookworm main contrib # trailing
deb-src http://mirror/debian bookworm main
deb [ arch=amd64 signed-by=/k.gpg ] http://mirror/debian bookworm-updates main
deb [trusted=yes] http://mirror/security bookworm-security/ main
deb http://mirror/security bookworm/updates main
deb http://mirror/debian bookworm-backports main
deb http://vendor/apt bookworm stable
deb http://mirror/flat ./
deb http://mirror/debian bookworm
deb
`
	const want = `deb http://mirror/debian trixie main
deb [ arch=amd64 signed-by=/k.gpg ] http://mirror/debian trixie-updates main
deb [trusted=yes] http://mirror/security trixie-security main
deb http://mirror/security trixie-security main
`
	if diff := cmp.Diff(want, rewriteList(in, suiteMap(testRelease(t, "6.12"), bookworm))); diff != "" {
		t.Errorf("rewritten list (-want +got):\n%s", diff)
	}
}

func TestRewriteDeb822(t *testing.T) {
	const in = `Types: deb deb-src
# a comment
URIs: http://mirror/debian
Suites: bookworm bookworm-updates stable bookworm-backports
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb
URIs: http://mirror/off
Suites: bookworm
Components: main
Enabled: no


types: deb
uris: http://mirror/security
suites: bookworm-security
components: main
enabled: yes

Types: deb-src
URIs: http://mirror/source
Suites: bookworm
Components: main

Types: deb
URIs: http://vendor/apt
Suites: nodistro
Components: main`
	const want = `Types: deb
URIs: http://mirror/debian
Suites: bullseye bullseye-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb
uris: http://mirror/security
Suites: bullseye-security
Components: main

`
	if diff := cmp.Diff(want, rewriteDeb822(in, suiteMap(testRelease(t, "5.10"), bookworm))); diff != "" {
		t.Errorf("rewritten sources (-want +got):\n%s", diff)
	}
}

func TestHostRelease(t *testing.T) {
	for _, test := range []struct {
		host osRelease
		want release
	}{
		{bookworm, release{"6.1", debian, "bookworm", cloudMeta, "6.1."}},
		{osRelease{debian, "forky", ""}, release{"debian-forky", debian, "forky", cloudMeta, ""}},
		{osRelease{ubuntu, "noble", ""}, release{"ubuntu-noble", ubuntu, "noble", "linux-image-virtual", ""}},
	} {
		got, err := findRelease(HostRelease, test.host)
		if err != nil || got != test.want {
			t.Errorf("findRelease on %v: got %v, %v; want %v", test.host, got, err, test.want)
		}
	}
	if _, err := findRelease(HostRelease, osRelease{"arch", "", "Arch Linux"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("another distribution: got %v, want an error with ErrUnavailable", err)
	}
	if _, err := findRelease("4.4", bookworm); err == nil || !strings.Contains(err.Error(), "5.10") {
		t.Errorf("unknown release: got %v, want an error with \"5.10\"", err)
	}
}

func TestSourcesOfAnotherDistribution(t *testing.T) {
	t.Setenv(SourcesEnv, "")
	err := writeSources(t.TempDir(), testRelease(t, "6.1"), osRelease{ubuntu, "noble", "Ubuntu 24.04"})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), SourcesEnv) {
		t.Errorf("sources of another distribution: got %v, want an error with ErrUnavailable and %q", err, SourcesEnv)
	}
}

func TestCompareVersions(t *testing.T) {
	got := []string{"5.10.0-9-cloud-amd64", "5.10.0-46-cloud-amd64", "6.12.9+deb13-cloud-amd64", "5.10.0-32-cloud-amd64", "6.12.107+deb13-cloud-amd64"}
	slices.SortFunc(got, compareVersions)
	want := []string{"5.10.0-9-cloud-amd64", "5.10.0-32-cloud-amd64", "5.10.0-46-cloud-amd64", "6.12.9+deb13-cloud-amd64", "6.12.107+deb13-cloud-amd64"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of versions (-want +got):\n%s", diff)
	}
}
