package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// readPlainFile is readRegularFile, but fails if path is a symbolic link.
func readPlainFile(path string, limit int64) ([]byte, error) {
	return readRegularFile(path, limit, unix.O_NOFOLLOW)
}

// readRegularFile reads a file of at most limit bytes. flags are added to the open flags. It
// refuses files that are not regular, such as a pipe, which would block.
func readRegularFile(path string, limit int64, flags int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|flags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("read %s: larger than %d bytes", path, limit)
	}
	return data, err
}

// versions are the versions of a file that this release reads, and the remedy for later ones.
type versions struct {
	first, last int
	remedy      string
}

// parseVersioned parses the JSON text of a file into v. It fails if the release does not support the version
// of the file.
func parseVersioned(data []byte, v any, what string, supported versions) error {
	// The version comes first: a field of a newer version may have another type.
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("parse the %s: %w", what, err)
	}
	if head.Version < supported.first || head.Version > supported.last {
		return fmt.Errorf("read the %s of version %d: this syncd supports versions %d to %d and replaces it (%s)",
			what, head.Version, supported.first, supported.last, supported.remedy)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("parse the %s: %w", what, err)
	}
	return nil
}

// checksumField begins a JSON object with a checksum. 16 hexadecimal digits follow, and the other fields.
const checksumField = `{"checksum":"`

// errDamaged is wrapped by the errors about a file whose content differs from its checksum.
var errDamaged = errors.New("damaged file: the content differs from the checksum")

// withChecksum returns a JSON object with the hash of its text as its first field. A release that does not have the field
// ignores it.
func withChecksum(object []byte) []byte {
	return fmt.Appendf(nil, `%s%016x",%s`, checksumField, xxh3.Hash(object), object[1:])
}

// cutChecksum returns the object of withChecksum. It returns other data, such as a file of an earlier release, as it is.
func cutChecksum(data []byte) ([]byte, error) {
	rest, found := bytes.CutPrefix(data, []byte(checksumField))
	if !found {
		return data, nil
	}
	sum, rest, _ := bytes.Cut(rest, []byte(`",`))
	object := append([]byte("{"), rest...)
	if string(sum) != fmt.Sprintf("%016x", xxh3.Hash(object)) {
		return nil, errDamaged
	}
	return object, nil
}

// replaceFile replaces the content of a file. After a crash at any time, path has either the old
// content or all of data. It does not follow symbolic links.
func replaceFile(path string, data []byte) error {
	next := path + ".new"
	// A crash may have left this file. If it is a symbolic link, this removes the link, not its
	// target.
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeSynced(next, data); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	if err := os.Rename(next, path); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return syncDir(filepath.Dir(path))
}

func writeSynced(path string, data []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// userIDs returns the ids of users that are given by name or id.
func userIDs(names []string) ([]uint32, error) {
	var ids []uint32
	var errs []error
	for _, name := range names {
		text := name
		if u, err := user.Lookup(name); err == nil {
			text = u.Uid
		}
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			errs = append(errs, fmt.Errorf("pin-owner %q: no user of that name or id", name))
			continue
		}
		ids = append(ids, uint32(id))
	}
	return ids, errors.Join(errs...)
}
