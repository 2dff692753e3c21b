package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// repository is a package archive on disk for the real package manager.
type repository struct {
	t     *testing.T
	dir   string
	index strings.Builder
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs apt and dpkg: kernels are Debian packages")
		}
	}
	return &repository{t: t, dir: t.TempDir()}
}

// add builds a package with the files and adds it to the index.
func (r *repository) add(name, version, depends string, files ...string) (deb string) {
	r.t.Helper()
	root := filepath.Join(r.t.TempDir(), name)
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: test <test@localhost>\nDescription: test\n", name, version)
	if depends != "" {
		control += "Depends: " + depends + "\n"
	}
	r.write(filepath.Join(root, "DEBIAN/control"), control)
	for _, path := range files {
		r.write(filepath.Join(root, path), path)
	}
	deb = filepath.Join(r.dir, "pool", name+"_"+version+"_amd64.deb")
	if err := os.MkdirAll(filepath.Dir(deb), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "-b", root, deb).CombinedOutput(); err != nil {
		r.t.Fatalf("build %s: got error %v, want none\n%s", deb, err, out)
	}
	sum, err := fileSHA256(deb)
	if err != nil {
		r.t.Fatal(err)
	}
	info, err := os.Stat(deb)
	if err != nil {
		r.t.Fatal(err)
	}
	fmt.Fprintf(&r.index, "%sFilename: pool/%s\nSize: %d\nSHA256: %s\n\n", control, filepath.Base(deb), info.Size(), sum)
	return deb
}

func (r *repository) write(path, text string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// publish writes the archive as a suite and makes it the source of this test.
func (r *repository) publish(suite, sourceSuite string) {
	r.write(filepath.Join(r.dir, "dists", suite, "main", "binary-amd64", "Packages"), r.index.String())
	source := filepath.Join(r.dir, "test.list")
	r.write(source, fmt.Sprintf("deb [trusted=yes] file:%s %s main\n", r.dir, sourceSuite))
	r.t.Setenv(SourcesEnv, source)
}

const imageFile = "boot/vmlinuz-"

func TestGetTakesNewestAvailableVersion(t *testing.T) {
	repo := newRepository(t)
	version := func(n int) string { return fmt.Sprintf("6.1.0-%d-cloud-amd64", n) }
	repo.add(cloudMeta, "6.1.9", "linux-image-"+version(12))
	for _, n := range []int{8, 9, 10, 12} {
		deb := repo.add("linux-image-"+version(n)+"-unsigned", fmt.Sprintf("6.1.%d-1", n), "",
			imageFile+version(n), "usr/lib/modules/"+version(n)+"/modules.builtin")
		if n >= 10 { // listed in the index but missing
			if err := os.Remove(deb); err != nil {
				t.Fatal(err)
			}
		}
	}
	repo.publish("bookworm", "trixie") // the suite is replaced
	before := systemLists(t)
	store := NewStore(filepath.Join(t.TempDir(), "cache"), slog.New(slog.DiscardHandler))
	if _, err := store.Cached("6.1"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("empty cache: got %v, want an error with fs.ErrNotExist", err)
	}
	k, err := store.Get(t.Context(), "6.1")
	if err != nil {
		t.Fatal(err)
	}
	if k.Version != version(9) || k.Packages[0] != "linux-image-"+version(9)+"-unsigned=6.1.9-1" || len(k.SHA256[0]) != 64 {
		t.Errorf("kernel: got %+v, want version %s, its unsigned package 6.1.9-1 first, and a digest of 64 digits", k, version(9))
	}
	if b, err := os.ReadFile(k.Image()); err != nil || string(b) != imageFile+version(9) {
		t.Errorf("image: got %q, error %v, want %q and nil", b, err, imageFile+version(9))
	}
	if _, err := k.Modules(); err != nil {
		t.Errorf("modules of a merged /usr: got %v, want nil", err)
	}
	if after := systemLists(t); before != after {
		t.Errorf("the system's package lists changed from %s to %s", before, after)
	}
	t.Setenv(SourcesEnv, "/nonexistent")
	if again, err := store.Get(t.Context(), "6.1"); err != nil || again.Version != k.Version {
		t.Errorf("cached kernel: got %v, error %v, want version %s and nil", again, err, k.Version)
	}
	if left, _ := filepath.Glob(filepath.Join(store.dir, ".*")); len(left) > 0 {
		t.Errorf("leftover files: got %v, want none", left)
	}
}

func TestGetUbuntu(t *testing.T) {
	repo := newRepository(t)
	const version = "6.8.0-50-generic"
	repo.add("linux-image-virtual", "6.8.50", "linux-image-"+version)
	repo.add("linux-image-"+version, "6.8.0-50.51", "", imageFile+version)
	repo.add("linux-modules-"+version, "6.8.0-50.51", "", "lib/modules/"+version+"/modules.builtin")
	repo.publish("noble", "noble")
	host := osRelease{ubuntu, "noble", "Ubuntu 24.04"}
	r, err := findRelease(HostRelease, host)
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(t.TempDir(), slog.New(slog.DiscardHandler))
	k, err := store.fetch(t.Context(), r, host)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Modules(); err != nil || k.Version != version || len(k.Packages) != 2 {
		t.Errorf("kernel: got %+v, error of its modules %v, want version %s with 2 packages, and nil", k, err, version)
	}
}

// TestGetTesting covers kernels since 7.0. Debian splits their packages and stores all files of a
// kernel in one directory.
func TestGetTesting(t *testing.T) {
	repo := newRepository(t)
	const version = "7.2.12+deb14-cloud-amd64"
	const dir = "usr/lib/modules/" + version
	repo.add(cloudMeta, "7.2.12-1", "linux-base-cloud-amd64, linux-image-"+version)
	repo.add("linux-image-"+version, "7.2.12-1", "linux-binary-"+version)
	repo.add("linux-binary-"+version, "7.2.12-1", "", dir+"/vmlinuz")
	repo.add("linux-modules-"+version, "7.2.12-1", "", dir+"/kernel/veth.ko.xz")
	repo.add("linux-base-"+version, "7.2.12-1", "", dir+"/modules.builtin", dir+"/config")
	repo.publish("testing", "bookworm")
	store := NewStore(t.TempDir(), slog.New(slog.DiscardHandler))
	k, err := store.Get(t.Context(), "testing/preempt=full")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{k.Image(), k.Config()} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if k.Version != version || len(k.Packages) != 3 || k.Parameter != "preempt=full" || !strings.HasPrefix(k.String(), "testing/preempt=full (7.2.12") {
		t.Errorf("kernel: got %s, %+v, want version %s with 3 packages and parameter preempt=full, also in the text", k, k, version)
	}
	if _, err := k.Modules(); err != nil {
		t.Error(err)
	}
	if k, err := store.Cached("testing"); err != nil || k.Parameter != "" {
		t.Errorf("cached kernel without a parameter: got %+v, error %v, want an empty parameter and nil", k, err)
	}
}

func TestKernelParameters(t *testing.T) {
	store := NewStore(t.TempDir(), slog.New(slog.DiscardHandler))
	for _, name := range []string{"6.1/", "6.1/preempt=full quiet", "6.1/=full", "6.1/init=/bin/sh/x y"} {
		if _, err := store.Get(t.Context(), name); err == nil || !strings.Contains(err.Error(), "not a kernel parameter") {
			t.Errorf("%q: got %v, want an error with \"not a kernel parameter\"", name, err)
		}
	}
}

func TestRefreshReplacesKernel(t *testing.T) {
	repo := newRepository(t)
	release := func(n int) {
		version := fmt.Sprintf("6.1.0-%d-cloud-amd64", n)
		repo.add(cloudMeta, fmt.Sprintf("6.1.%d", n), "linux-image-"+version)
		repo.add("linux-image-"+version+"-unsigned", fmt.Sprintf("6.1.%d-1", n), "", imageFile+version)
		repo.publish("bookworm", "bookworm")
	}
	release(1)
	store := NewStore(t.TempDir(), slog.New(slog.DiscardHandler))
	first, err := store.Get(t.Context(), "6.1")
	if err != nil {
		t.Fatal(err)
	}
	release(2)
	second, err := store.Refresh(t.Context(), "6.1")
	if err != nil || second.Version == first.Version {
		t.Fatalf("Refresh: got %v, error %v, want another version than %s and nil", second, err, first.Version)
	}
	if _, err := os.Stat(first.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("old kernel: got %v, want it removed", err)
	}
	t.Setenv(SourcesEnv, filepath.Join(repo.dir, "empty.list"))
	repo.write(os.Getenv(SourcesEnv), "")
	if _, err := store.Refresh(t.Context(), "6.1"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without a source: got %v, want an error with ErrUnavailable", err)
	}
	if kept, err := store.Cached("6.1"); err != nil || kept.Version != second.Version {
		t.Errorf("after a failure: got %v, error %v, want version %s and nil", kept, err, second.Version)
	}
}

func TestUnknownPackageError(t *testing.T) {
	repo := newRepository(t)
	repo.publish("trixie", "bookworm")
	store := NewStore(t.TempDir(), slog.New(slog.DiscardHandler))
	_, err := store.Get(t.Context(), "6.12")
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), cloudMeta) || !strings.Contains(err.Error(), "trixie") {
		t.Errorf("unknown package: got %v, want an error with ErrUnavailable and %q and \"trixie\"", err, cloudMeta)
	}
}

// systemLists returns a description of the system's package lists.
func systemLists(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"/var/lib/apt/lists", "/var/cache/apt"} {
		info, err := os.Stat(dir)
		if err != nil {
			continue
		}
		fmt.Fprintln(&all, dir, info.ModTime())
	}
	return all.String()
}

func TestLockIsExclusiveAndCancellable(t *testing.T) {
	store := NewStore(t.TempDir(), slog.New(slog.DiscardHandler))
	r := testRelease(t, "6.1")
	unlock, err := store.lock(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := store.lock(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second lock: got %v, want an error with context.DeadlineExceeded", err)
	}
	unlock()
	again, err := store.lock(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestReadOSRelease(t *testing.T) {
	path := filepath.Join(t.TempDir(), "os-release")
	text := "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := readOSRelease(path); err != nil || got != bookworm {
		t.Errorf("readOSRelease: got %+v, %v, want %+v and nil", got, err, bookworm)
	}
}
