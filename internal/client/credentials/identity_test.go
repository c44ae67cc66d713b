package credentials

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nobody returns the credentials of a user without rights, where the test may choose.
func nobody() (uid, gid int, cred *syscall.Credential) {
	if os.Getuid() != 0 {
		return os.Getuid(), os.Getgid(), nil
	}
	return 65534, 65534, &syscall.Credential{Uid: 65534, Gid: 65534}
}

// A child is a process of user nobody that has printed that it runs.
type child struct {
	Caller
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
	return &child{Caller: Caller{Pid: cmd.Process.Pid, UID: uid, GID: gid}, in: in, out: bufio.NewScanner(out)}
}

// mapped returns an address that the process has mapped.
func (c *child) mapped(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.Pid))
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

// TestForeignMemoryAfterExec: an opened memory file stays with the old address space after exec, although the process
// number is the same.
func TestForeignMemoryAfterExec(t *testing.T) {
	c := startChild(t, "/bin/sh", "-c", "echo runs; read x; exec sh -c 'echo again; read y'")
	c.out.Scan()
	f, maps, err := openMemory(&c.Caller)
	if err != nil {
		t.Fatalf("the memory of a process of the same user: %v", err)
	}
	defer f.Close()
	defer maps.Close()
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

// TestForeignMemoryRefused: no process can open memory of another user.
func TestForeignMemoryRefused(t *testing.T) {
	refused := func(t *testing.T, who Caller, why string) {
		t.Helper()
		f, _, err := openMemory(&who)
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
		who := c.Caller
		who.UID += 1
		refused(t, who, "it connected as uid")
		who = c.Caller
		who.GID += 1
		refused(t, who, "it connected as gid")
	})
	t.Run("another pid namespace", func(t *testing.T) { refused(t, Caller{UID: c.UID, GID: c.GID}, "pid namespace") })
	t.Run("ended", func(t *testing.T) {
		end := exec.Command("/bin/true")
		if err := end.Run(); err != nil {
			t.Fatal(err)
		}
		who := c.Caller
		who.Pid = end.Process.Pid
		refused(t, who, "no such")
	})
	t.Run("undumpable", func(t *testing.T) {
		// A program that its own user cannot read must not be readable through the daemon.
		path := filepath.Join(publicDir(t), "secret")
		copyProgram(t, path, 0o711)
		who := startChild(t, path).Caller
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
		refused(t, startChild(t, path).Caller, "it connected as uid")
	})
}

// publicDir returns a directory that every user can enter.
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

// TestStatusIDs: one of the eight IDs that belongs to another user is enough for a refusal.
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
	fd, err := unix.PidfdOpen(c.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if exited(fd) {
		t.Error("a process that runs has ended")
	}
	syscall.Kill(c.Pid, syscall.SIGKILL)
	for deadline := time.Now().Add(time.Minute); !exited(fd); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a killed process has not ended within a minute")
		}
	}
}
