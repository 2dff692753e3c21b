package daemon

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryLimitOfTheCgroup(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, c := range map[string]struct {
		self  string
		files map[string]string
		want  int64
	}{
		"version 2":            {"0::/system.slice/syncd.service\n", map[string]string{"system.slice/syncd.service/memory.max": "536870912\n"}, 512 * mib},
		"limit of a parent":    {"0::/a/b\n", map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "104857600\n"}, 100 * mib},
		"lowest of two limits": {"0::/a/b\n", map[string]string{"a/b/memory.max": "209715200\n", "a/memory.max": "104857600\n"}, 100 * mib},
		"in a container":       {"0::/\n", map[string]string{"memory.max": "104857600\n"}, 100 * mib},
		"version 1":            {"5:cpu:/x\n4:memory:/d\n", map[string]string{"memory/d/memory.limit_in_bytes": "104857600\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"}, 100 * mib},
		"no limit":             {"0::/a\n", map[string]string{"a/memory.max": "max\n"}, 0},
		"no files":             {"0::/a\n", nil, 0},
		"escape":               {"0::/../../etc\n", map[string]string{"etc/memory.max": "104857600\n"}, 100 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			self := filepath.Join(root, "self")
			if err := os.WriteFile(self, []byte(c.self), 0o600); err != nil {
				t.Fatal(err)
			}
			for file, text := range c.files {
				path := filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := cgroupMemory(self, root); got != c.want {
				t.Errorf("memory limit: got %d, want %d", got, c.want)
			}
		})
	}
}
