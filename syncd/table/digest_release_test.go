package table

import (
	"fmt"
	"testing"
)

// TestDigestsOfReleases: nodes of different releases compare digests, so a record has the same digest in each
// release. A change of these numbers needs a new version of the protocol.
func TestDigestsOfReleases(t *testing.T) {
	type sums struct {
		digest Digest
		bucket int
	}
	for _, c := range []struct {
		key, value string
		digestKey  string
		masked     bool
		want       sums
	}{
		{"key00001", "value of record 1", "", false, sums{Digest{0x2f7c24b2956842c6, 0x8e9cd08b0394c247, 1}, 103}},
		{"key00001", "value of record 1", "secret", false, sums{Digest{0xcbfea7180e4e0d70, 0xb5e92f8ecf12089e, 1}, 242}},
		{"key00002", "value of record 1", "secret", false, sums{Digest{0xc62c79c121c7bf2a, 0xb5e92f8ecf12089e, 1}, 285}},
		{"key00001", "value of record 2", "secret", false, sums{Digest{0x130d60c42ebf1d71, 0xb5e92f8ecf12089e, 1}, 242}},
		{"key00001", "value of record 2", "secret", true, sums{Digest{0x5d59a842e2c8a44c, 0xb5e92f8ecf12089e, 1}, 242}},
	} {
		o := Options{Self: Owner{"a", 1}, KeySize: len(c.key), ValueSize: len(c.value), DigestKey: []byte(c.digestKey)}
		if c.masked { // the last byte is local
			o.Carried = make([]byte, len(c.value))
			for i := range len(c.value) - 1 {
				o.Carried[i] = 0xff
			}
		}
		tab, err := New(o)
		if err != nil {
			t.Fatalf("new table: got error %v, want nil", err)
		}
		var got sums
		tab.Update(func(tx *Tx) {
			d := Delta{Key: []byte(c.key), Value: []byte(c.value), Version: 1_795_000_000_000_000_001, Owner: tx.Intern(Owner{"lb2", 77})}
			tx.Remote(&d, int64(d.Version), RemoteOptions{})
			_, got.digest, got.bucket, _ = tx.DigestOf([]byte(c.key))
		})
		if got != c.want {
			t.Errorf("%s = %s, digest key %q, masked %t: got %s, want %s", c.key, c.value, c.digestKey, c.masked,
				fmt.Sprintf("%#v", got), fmt.Sprintf("%#v", c.want))
		}
	}
}
