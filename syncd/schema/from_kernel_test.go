package schema

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// liveInfo is the part of struct bpf_map_info with the IDs of a map's types.
type liveInfo struct {
	_, _, keySize, valueSize, _, _ uint32
	_                              [16]byte
	_, _                           uint32
	_, _                           uint64
	btf, key, value, _             uint32
}

func infoOf(t testing.TB, m *ebpf.Map) (ids BTFIDs, keySize, valueSize int) {
	t.Helper()
	var info liveInfo
	attr := struct {
		fd, length uint32
		info       unsafe.Pointer
	}{uint32(m.FD()), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	if _, _, errno := unix.Syscall(unix.SYS_BPF, 15, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)); errno != 0 {
		t.Fatalf("information of the map: got error %v, want none", errno)
	}
	return BTFIDs{info.btf, info.key, info.value}, int(info.keySize), int(info.valueSize)
}

// liveMaps creates the hash maps of the object in the kernel.
func liveMaps(t *testing.T) map[string]*ebpf.Map {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(layouts)
	if err != nil {
		t.Fatal(err)
	}
	live := map[string]*ebpf.Map{}
	for name, m := range spec.Maps {
		switch m.Type {
		case ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		default:
			continue
		}
		if m.Type != ebpf.Hash && m.Type != ebpf.PerCPUHash {
			m.Flags = 0 // an LRU map is always preallocated
		}
		k, err := ebpf.NewMap(m)
		if errors.Is(err, unix.EPERM) {
			t.Skipf("needs CAP_BPF: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { k.Close() })
		live[name] = k
	}
	return live
}

// TestFromMap checks that a live map has the same schema as the object file from which it was
// created.
func TestFromMap(t *testing.T) {
	for name, k := range liveMaps(t) {
		ids, keySize, valueSize := infoOf(t, k)
		want := layout(t, name)
		if (ids.BTF == 0) != want.Opaque {
			t.Errorf("map %s: got BTF ID %d, want 0: %t", name, ids.BTF, want.Opaque)
		}
		got, err := FromMap(name, ids, keySize, valueSize)
		if errors.Is(err, fs.ErrPermission) {
			t.Skip(err)
		}
		if err != nil {
			t.Error(err)
			continue
		}
		if want.CPUs > 0 {
			got = got.PerCPU(1)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("live map %s:\ngot\n%s\nwant as in the file\n%s",
				name, strings.Join(lines(got.Value, ""), "\n"), strings.Join(lines(want.Value, ""), "\n"))
		}
		if want.Opaque {
			continue
		}
		if _, err := FromMap(name, ids, keySize, valueSize+8); !errors.Is(err, ErrType) {
			t.Errorf("types with other sizes than map %s: got %v, want ErrType", name, err)
		}
	}
}

func TestFromMapAbsentTypes(t *testing.T) {
	ids, keySize, valueSize := infoOf(t, liveMaps(t)["ct"])
	wrong := ids
	wrong.Value = 1 << 20
	if _, err := FromMap("m", wrong, keySize, valueSize); err == nil || errors.Is(err, fs.ErrPermission) {
		t.Errorf("absent type ID: got %v, want an error other than ErrPermission", err)
	}
	ids.BTF = 1 << 30
	if _, err := FromMap("m", ids, keySize, valueSize); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent BTF ID: got %v, want ErrNotExist", err)
	}
}

// TestFromMapUnprivileged checks that the error without CAP_SYS_ADMIN names the missing capability.
func TestFromMapUnprivileged(t *testing.T) {
	ids, keySize, valueSize := infoOf(t, liveMaps(t)["ct"])
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // the goroutine ends with its thread, which has lost its privileges
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			result <- err
			return
		}
		_, err := FromMap("ct", ids, keySize, valueSize)
		result <- err
	}()
	if err := <-result; !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "CAP_SYS_ADMIN") {
		t.Errorf("without privileges: got %v, want ErrPermission with CAP_SYS_ADMIN", err)
	}
}

// TestBrokenObjects checks truncated and damaged files: reading returns an error, or the readable
// part.
func TestBrokenObjects(t *testing.T) {
	whole, err := os.ReadFile(layouts)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "broken.o")
	read := func(b []byte) error {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := FromObject(path)
		return err
	}
	for n := 0; n < len(whole); n += 101 {
		if read(whole[:n]) == nil {
			t.Errorf("read object truncated to %d of %d bytes: got no error, want an error", n, len(whole))
		}
		damaged := slices.Clone(whole)
		copy(damaged[n:], "\xff\xff\xff\xff\xff\xff\xff\xff")
		_ = read(damaged) // must return
	}
	if err := read(bigBTF(t)); err == nil || !strings.Contains(err.Error(), "bytes of BTF, more than") {
		t.Errorf("read object with endless BTF: got %v, want an error with \"bytes of BTF, more than\"", err)
	}
	if err := read([]byte("no object")); err == nil || !strings.Contains(err.Error(), "read BPF object") {
		t.Errorf("read file that is not an object: got %v, want an error with \"read BPF object\"", err)
	}
	if _, err := FromObject("absent.o"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read absent file: got %v, want ErrNotExist", err)
	}
}

// bigBTF returns an object with BTF of 300,000 pointers, each to the next one. A reader that
// follows them recursively overflows its stack.
func bigBTF(t *testing.T) []byte {
	var types, out bytes.Buffer
	write := func(w *bytes.Buffer, v any) {
		if err := binary.Write(w, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint32(300000) {
		write(&types, [3]uint32{0, 2 << 24, (i + 2) % 300000})
	}
	btf := []byte{0x9f, 0xeb, 1, 0}
	for _, v := range []uint32{24, 0, uint32(types.Len()), uint32(types.Len()), 1} {
		btf = binary.LittleEndian.AppendUint32(btf, v)
	}
	btf = append(append(btf, types.Bytes()...), 0)
	names := "\x00.BTF\x00.shstrtab\x00"
	header := elf.Header64{
		Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_BPF), Version: 1, Ehsize: 64, Shentsize: 64, Shnum: 3, Shstrndx: 2,
		Shoff: uint64(64 + len(btf) + len(names)),
	}
	copy(header.Ident[:], "\x7fELF\x02\x01\x01")
	write(&out, header)
	out.Write(btf)
	out.WriteString(names)
	write(&out, [3]elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: 64, Size: uint64(len(btf)), Addralign: 1},
		{Name: 6, Type: uint32(elf.SHT_STRTAB), Off: uint64(64 + len(btf)), Size: uint64(len(names)), Addralign: 1},
	})
	return out.Bytes()
}
