package frontdoor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma/internal/abi"
	"vrdma/internal/channel"
)

// nobody are the credentials of a user without rights, where the test may choose.
func nobody() (uid, gid int, cred *syscall.Credential) {
	if os.Getuid() != 0 {
		return os.Getuid(), os.Getgid(), nil
	}
	return 65534, 65534, &syscall.Credential{Uid: 65534, Gid: 65534}
}

// A child is a process of nobody's that has printed that it runs.
type child struct {
	peer
	in  io.WriteCloser
	out *bufio.Scanner
}

func startChild(t *testing.T, argv ...string) *child {
	t.Helper()
	uid, gid, cred := nobody()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	cmd.Dir = "/"
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &child{peer: peer{pid: cmd.Process.Pid, uid: uid, gid: gid}, in: in, out: bufio.NewScanner(out)}
}

// mapped is an address that the process has mapped.
func (c *child) mapped(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var lo, hi int64
		var prot string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &lo, &hi, &prot); n == 3 && prot == "rw-p" {
			return lo
		}
	}
	t.Fatal("the process has no memory")
	return 0
}

// TestForeignMemoryAfterExec: what was opened of a process stays with the address space that it
// had, though its number lives on.
func TestForeignMemoryAfterExec(t *testing.T) {
	c := startChild(t, "/bin/sh", "-c", "echo runs; read x; exec sh -c 'echo again; read y'")
	c.out.Scan()
	f, err := openMemory(&c.peer)
	if err != nil {
		t.Fatalf("the memory of a process of the same user: %v", err)
	}
	defer f.Close()
	at := c.mapped(t)
	var b [16]byte
	if n, err := f.ReadAt(b[:], at); n != len(b) {
		t.Fatalf("read %d bytes, %v; want %d", n, err, len(b))
	}
	io.WriteString(c.in, "\n")
	if c.out.Scan(); c.out.Text() != "again" {
		t.Fatalf("the process printed %q, want \"again\"", c.out.Text())
	}
	for _, at := range []int64{at, c.mapped(t)} {
		if n, err := f.ReadAt(b[:], at); n != 0 {
			t.Errorf("read %d bytes at %#x after exec (%v), want none", n, at, err)
		}
		if n, err := f.WriteAt(b[:], at); n != 0 {
			t.Errorf("wrote %d bytes at %#x after exec (%v), want none", n, at, err)
		}
	}
}

// TestForeignMemoryRefused: nobody gets at memory that is not its own.
func TestForeignMemoryRefused(t *testing.T) {
	refused := func(t *testing.T, who peer, why string) {
		t.Helper()
		f, err := openMemory(&who)
		if err == nil {
			f.Close()
			t.Fatal("the memory could be opened")
		}
		if !strings.Contains(err.Error(), why) {
			t.Errorf("refused with %q, want %q", err, why)
		}
	}
	c := startChild(t, "/bin/sh", "-c", "echo runs; read x")
	c.out.Scan()
	t.Run("the number of another user's process", func(t *testing.T) {
		who := c.peer
		who.uid += 1
		refused(t, who, "it connected as uid")
		who = c.peer
		who.gid += 1
		refused(t, who, "it connected as gid")
	})
	t.Run("another pid namespace", func(t *testing.T) { refused(t, peer{uid: c.uid, gid: c.gid}, "pid namespace") })
	t.Run("ended", func(t *testing.T) {
		end := exec.Command("/bin/true")
		if err := end.Run(); err != nil {
			t.Fatal(err)
		}
		who := c.peer
		who.pid = end.Process.Pid
		refused(t, who, "no such")
	})
	t.Run("undumpable", func(t *testing.T) {
		// A program that its own user cannot read must not be read through us either.
		path := filepath.Join(publicDir(t), "secret")
		copyProgram(t, path, 0o711)
		who := startChild(t, path).peer
		why := "it may not be debugged"
		if os.Getuid() != 0 {
			why = "does not let"
		}
		refused(t, who, why)
	})
	t.Run("setuid", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("only root can make a setuid-root program")
		}
		path := filepath.Join(publicDir(t), "su")
		copyProgram(t, path, 0o755|os.ModeSetuid)
		refused(t, startChild(t, path).peer, "it connected as uid")
	})
}

// publicDir is a directory that everybody can reach.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "vrdma-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// copyProgram makes a copy of cat, which waits for its input.
func copyProgram(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	b, err := os.ReadFile("/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// TestStatusIDs: one id among the eight that is another user's is enough.
func TestStatusIDs(t *testing.T) {
	for _, c := range []struct {
		status string
		ok     bool
	}{
		{"Name:\tcat\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\n", true},
		{"Name:\tUid: 7 7 7 7\nUid:\t7\t0\t0\t0\nGid:\t8\t8\t8\t8\n", false},
		{"Uid:\t7\t7\t0\t7\nGid:\t8\t8\t8\t8\n", false},
		{"Uid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t0\n", false},
		{"Uid:\t7\t7\t7\t7\n", false},
		{"Uid:\t7\t7\t7\nGid:\t8\t8\t8\t8\n", false},
		{"", false},
	} {
		if err := checkStatus(strings.NewReader(c.status), 7, 8); (err == nil) != c.ok {
			t.Errorf("%q: %v, want ok %v", c.status, err, c.ok)
		}
	}
}

func FuzzStatusIDs(f *testing.F) {
	f.Add("Uid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\n")
	f.Add("Uid:\t7\t0\t0\t0\nGid:\t8\t8\t8\t8\n")
	f.Fuzz(func(t *testing.T, s string) {
		if checkStatus(strings.NewReader(s), 7, 8) == nil && (!strings.Contains(s, "Uid:") || !strings.Contains(s, "Gid:")) {
			t.Errorf("%q passes without ids", s)
		}
	})
}

// TestPidfdOfCaller: a pidfd tells when its process has ended.
func TestPidfdOfCaller(t *testing.T) {
	c := startChild(t, "/bin/cat")
	fd, err := unix.PidfdOpen(c.pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if exited(fd) {
		t.Error("a process that runs has ended")
	}
	syscall.Kill(c.pid, syscall.SIGKILL)
	eventually(t, "the end of a killed process", func() bool { return exited(fd) })
}

// TestForeignMemoryWhy: a program whose memory is not ours to touch is refused with EPERM, keeps
// what it can map, and log and trace say why.
func TestForeignMemoryWhy(t *testing.T) {
	var text syncBuffer
	s := testServerWith(t, Config{Log: slog.New(slog.NewTextHandler(&text, nil))})
	c := &client{t: t, buf: make([]byte, channel.MaxMessage)}
	c.proc = dial(t, s, channel.Hello{Kind: channel.KindProcess, Program: "prog"})
	s.mu.Lock()
	for _, p := range s.processes {
		p.space.SetForeign(nil)
		p.apart = errors.New("it is a test")
	}
	s.mu.Unlock()
	c.dev = dial(t, s, channel.Hello{Kind: channel.KindUverbs, Token: c.proc.Welcome.Token, Program: "prog"})
	c.must(legacy(abi.CmdGetContext, &abi.GetContext{Response: respAddr}, nil, 8))
	sub := s.trace.subscribe("", &peer{uid: os.Getuid()}, true)
	defer s.trace.unsubscribe(sub)
	reg := func(kind uint32) ([]byte, channel.Extent) {
		const start = 0x7000_0000_0000
		return legacy(abi.CmdRegMR, &abi.RegMR{Response: respAddr, Start: start, Length: 4096, HCAVA: start, PDHandle: pd(c)}, nil, 12),
			channel.Extent{Start: start, Length: 4096, Kind: kind, Prot: channel.ProtRead}
	}
	command, extent := reg(channel.ExtentForeign)
	c.fails("foreign memory", command, syscall.EPERM, extent)
	if got := text.String(); !strings.Contains(got, "it is a test") {
		t.Errorf("the log says %q", got)
	}
	for r := range sub.records {
		if strings.HasPrefix(r.Error, "EPERM") {
			if !strings.Contains(r.Error, "it is a test") {
				t.Errorf("the trace says %q", r.Error)
			}
			break
		}
	}
	command, extent = reg(channel.ExtentShared)
	c.must(command, extent)
}

// A syncBuffer takes text from several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
