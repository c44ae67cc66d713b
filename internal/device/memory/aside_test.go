package memory

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// Memory that is reached aside is reached where the daemon has it mapped. The process has nothing at its
// address here, as after mremap, munmap or in the middle of a fork.
func TestAsideIsTheRegionsPages(t *testing.T) {
	s := newSpace(t, 0)
	start := uint64(7)<<windowBits - 5000 // across two windows
	want := pattern(10000)
	fill(t, s, start, want)
	r, err := s.Map(start, 10000, []Extent{{Start: start, Offset: start, Length: 10000, Kind: Own, Prot: ProtRead | ProtWrite}})
	if err != nil {
		t.Fatal(err)
	}
	woken := make(chan struct{}, 100)
	p := NewPool(func() { woken <- struct{}{} })
	defer p.Close()
	run := func(j *Job) {
		t.Helper()
		if !p.Start(0, j) {
			t.Fatal("the job was refused")
		}
		if err := await(t, p, woken, 1)[0].Err(); err != nil {
			t.Fatal(err)
		}
	}
	var src, dst Span
	if !r.Reach(100, 9000, &src, true) || !src.Foreign() {
		t.Fatal("want foreign pieces")
	}
	var read, write Job
	read.Read()
	read.ReadMore(&src, 0)
	read.Fetch()
	run(&read)
	if ok, err := read.Stage(&src, 0); !ok || err != nil {
		t.Fatalf("staged: %v, %v", ok, err)
	}
	r.Reach(1000, 9000, &dst, true)
	write.Write(&dst, &src)
	run(&write)
	if ok, err := write.Wrote(&dst, &src); !ok || err != nil {
		t.Fatalf("wrote: %v, %v", ok, err)
	}
	got := make([]byte, 9000)
	if _, err := unix.Pread(int(s.File().Fd()), got, int64(start+1000)); err != nil || !bytes.Equal(got, want[100:9100]) {
		t.Errorf("the region's pages differ (%v)", err)
	}
	var add Job
	var word Span
	r.Reach(8, 8, &word, true)
	add.Atomic(&word, false, 0, 1)
	add.HoldWord(r, 8)
	run(&add)

	// A job that has not come back holds its windows.
	var late Job
	late.Read()
	dst.Reset()
	r.Reach(0, 10000, &dst, true)
	late.ReadMore(&dst, 0)
	late.Fetch()
	r.Release()
	if n := len(s.windows); n != 2 {
		t.Errorf("%d windows while a job holds them, want 2", n)
	}
	late.Recycle()
	if n := len(s.windows); n != 0 {
		t.Errorf("%d windows after the job, want none", n)
	}
}
