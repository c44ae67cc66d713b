package server

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// pagesIn is how many bytes there are in a memfd.
func pagesIn(t testing.TB, fd int) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// TestMemfdOutlivesProcess: a process ends while another one holds its memfd. The pages are removed, and only then its
// user is no longer charged.
func TestMemfdOutlivesProcess(t *testing.T) {
	ledger := budget.New(roomy())
	s := testServerWith(t, Config{Budget: ledger})
	prog := exec.Command(os.Args[0])
	prog.Env = append(os.Environ(), helperSocket+"="+s.listeners.list[0].Socket)
	prog.Stderr = os.Stderr
	out, err := prog.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := prog.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() {
		prog.Process.Kill()
		prog.Wait()
	}
	defer end()
	var child, fd int
	if _, err := fmt.Fscan(bufio.NewReader(out), &child, &fd); err != nil {
		t.Fatalf("the program did not start: %v", err)
	}
	defer unix.Kill(child, unix.SIGKILL)
	memfd, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", prog.Process.Pid, fd), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer memfd.Close()
	if n := pagesIn(t, int(memfd.Fd())); n != 1<<20 {
		t.Fatalf("%d bytes in the memfd, want %d", n, 1<<20)
	}
	s.clients.recount()
	if n := ledger.Owner().Used()[budget.Memory]; n != 1<<20 {
		t.Errorf("%d bytes are charged, want %d", n, 1<<20)
	}
	end()
	eventually(t, "the end of what is charged", func() bool { return ledger.Owner().Used() == budget.Bill{} })
	if n := pagesIn(t, int(memfd.Fd())); n != 0 {
		t.Errorf("%d bytes are in the memfd, and nobody pays for them", n)
	}
}

// TestMemfdOfTheLiving: a process that lives on without its connection keeps its memory, which is its heap. Its user is
// charged until the process removes the pages.
func TestMemfdOfTheLiving(t *testing.T) {
	ledger := budget.New(roomy())
	s := testServerWith(t, Config{Budget: ledger})
	c := dial(t, s, protocol.Hello{Kind: protocol.KindProcess, Program: "prog"})
	fd := int(c.Files[0].Fd())
	page := make([]byte, 4096)
	page[0] = 42
	if _, err := unix.Pwrite(fd, page, 1<<32); err != nil {
		t.Fatal(err)
	}
	c.Conn.Close()
	eventually(t, "the end of the process", func() bool { return s.Sessions() == 0 })
	eventually(t, "the charge", func() bool { return ledger.Owner().Used()[budget.Memory] == 4096 })
	if _, err := unix.Pread(fd, page, 1<<32); err != nil || page[0] != 42 {
		t.Fatalf("the process's memory reads %d, %v, want 42", page[0], err)
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1<<32, 4096); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of what is charged", func() bool { return ledger.Owner().Used() == budget.Bill{} })
}
