package memory

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
)

// The text of /proc/PID/maps, which older kernels have instead of PROCMAP_QUERY.
func TestFindLine(t *testing.T) {
	const text = `5581e0000000-5581e0001000 r--p 00000000 08:01 1835 /usr/bin/x
7f0000000000-7f0000010000 rw-s 00002000 00:01 77 /dev/shm/a b
7f0000010000-7f0000020000 ---p 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
`
	for addr, want := range map[uint64]uint64{
		0: 0, 0x5581dfffffff: 0, 0x5581e0000000: 0x5581e0000000, 0x5581e0000fff: 0x5581e0000000, 0x5581e0001000: 0,
		0x7f000000ffff: 0x7f0000000000, 0x7f0000010000: 0x7f0000010000, 0x7f0000020000: 0, 0xffffffffff600fff: 0xffffffffff600000, 1<<64 - 1: 0,
	} {
		v, err := findLine(strings.NewReader(text), addr)
		if v.start != want || (err == syscall.ENOENT) != (want == 0) {
			t.Errorf("%#x: %+v, %v; want the mapping at %#x", addr, v, err, want)
		}
	}
	v, err := findLine(strings.NewReader(text), 0x7f0000000001)
	if err != nil || !v.shared || v.prot != ProtRead|ProtWrite || v.offset != 0x2000 || v.ino != 77 || v.name != "/dev/shm/a" {
		t.Errorf("%+v, %v", v, err)
	}
	for _, text := range []string{"", "\n", "zz\n", "1", "1-", "1-5", "1-5 rw-s"} {
		if v, err := findLine(strings.NewReader(text), 2); err != syscall.ENOENT {
			t.Errorf("%q: %+v, %v", text, v, err)
		}
	}
}

// A process with as many mappings as it may have cannot keep the daemon busy with one registration: lines before the mapping are
// not parsed, and cost no memory.
func TestFindLineAllocates(t *testing.T) {
	var b strings.Builder
	for i := range 65_530 {
		fmt.Fprintf(&b, "%x-%x rw-s 00000000 00:01 %d /dev/shm/%d\n", (i+1)<<20, (i+1)<<20+4096, i, i)
	}
	text := b.String()
	n := testing.AllocsPerRun(1, func() {
		if v, err := findLine(strings.NewReader(text), 65_530<<20); err != nil || v.ino != 65_529 {
			t.Fatal(v, err)
		}
	})
	if n > 100 {
		t.Errorf("%v allocations", n)
	}
	// Lines behind the mapping are not read.
	r := strings.NewReader(text)
	if _, err := findLine(r, 1<<20); err != nil || r.Len() < len(text)-(1<<17) {
		t.Errorf("%d of %d bytes are left, %v", r.Len(), len(text), err)
	}
}

func FuzzFindLine(f *testing.F) {
	f.Add("7f0000000000-7f0000010000 rw-s 00002000 00:01 77 /dev/shm/a\n", uint64(0x7f0000000001))
	f.Fuzz(func(t *testing.T, text string, addr uint64) {
		v, err := findLine(io.LimitReader(strings.NewReader(text), 1<<16), addr)
		if (err == nil) != (v.end != 0) {
			t.Errorf("%+v, %v", v, err)
		}
	})
}

func BenchmarkFindLine(b *testing.B) {
	var text strings.Builder
	for i := range 65_530 {
		fmt.Fprintf(&text, "%x-%x rw-s 00000000 00:01 %d /dev/shm/%d\n", (i+1)<<20, (i+1)<<20+4096, i, i)
	}
	for b.Loop() {
		if _, err := findLine(strings.NewReader(text.String()), 65_530<<20); err != nil {
			b.Fatal(err)
		}
	}
}
