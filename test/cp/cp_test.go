package cp

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// TestOneHost copies there and back on one host, through the device.
func TestOneHost(t *testing.T) {
	d := here(t)
	d.NoLeaks(t)
	dir, from, back := t.TempDir(), t.TempDir(), t.TempDir()
	key := write(t, filepath.Join(t.TempDir(), "key"), []byte("0123456789abcdef0123\n"))
	if err := os.Chmod(key, 0o600); err != nil {
		t.Fatal(err)
	}
	s := d.serve(t, dir, "--key-file", key, "--write")
	if out := s.Output(); !strings.Contains(out, "clients with the key of "+key+" on this host may fetch and send files") {
		t.Errorf("the server says\n%s", out)
	}
	const size = 20<<20 + 5
	a, b := write(t, filepath.Join(from, "a"), content(size)), write(t, filepath.Join(from, "b"), content(77))
	old := time.Unix(1e9, 123456789)
	if err := os.Chtimes(b, old, old); err != nil {
		t.Fatal(err)
	}
	d.Carried(t, harness.Traffic{Bytes: 2 * size}, func() {
		d.cp(t, "--key-file", key, "-p", a, b, s.url("")).OK(t, minute)
		d.cp(t, "--key-file", key, "-p", "-r", s.url(""), back).OK(t, minute)
	})
	for _, at := range []string{dir, back} {
		same(t, filepath.Join(at, "a"), content(size))
		same(t, filepath.Join(at, "b"), content(77))
		info, err := os.Stat(filepath.Join(at, "b"))
		if err != nil || !info.ModTime().Equal(old) || info.Mode().Perm() != 0o640 {
			t.Errorf("%s/b: %v %v", at, info, err)
		}
		if got := names(t, at); got != "a b" {
			t.Errorf("%s has %s", at, got)
		}
	}
	fails(t, d.cp(t, a, s.url("")), "it wants a key: give --key-file")
	if err := os.WriteFile(key+"2", []byte("0123456789abcdef0124\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, d.cp(t, "--key-file", key+"2", a, s.url("")), "the key is wrong")
	fails(t, d.cp(t, "--key-file", key, write(t, filepath.Join(from, "x", "a"), content(9)), s.url("")), "a: it exists, and is not overwritten")
	fails(t, d.cp(t, "--key-file", key, s.url("../"+filepath.Base(from)+"/a"), back), "leads out of the directory")
	s.Signal(syscall.SIGTERM)
	s.OK(t, minute)
}

// TestProgress: only a terminal shows a progress bar.
func TestProgress(t *testing.T) {
	harness.Need(t, "script")
	d := here(t)
	dir := t.TempDir()
	s := d.serve(t, dir, "--public", "--write")
	file := write(t, filepath.Join(t.TempDir(), "f"), content(1<<20))
	command := fmt.Sprintf("%s cp %s %s", harness.Binary(), file, s.url(""))
	terminal := d.inside("script", "-qec", command+"tty", "/dev/null")
	terminal.Env = append(terminal.Env, "TERM=xterm")
	if out := harness.Spawn(t, terminal).OK(t, minute); !strings.Contains(out, "100 %  1.05 MB of 1.05 MB") || !strings.Contains(out, "left") {
		t.Errorf("on a terminal it shows %q", out)
	}
	if out := d.cp(t, file, s.url("pipe")).OK(t, minute); out != "" {
		t.Errorf("elsewhere it shows %q", out)
	}
}

// TestUsage: senseless arguments are refused with a reason.
func TestUsage(t *testing.T) {
	d := here(t)
	file := write(t, filepath.Join(t.TempDir(), "f"), content(10))
	for want, args := range map[string][]string{
		"give --key-file FILE, or --public":     {"--serve", t.TempDir()},
		"are both here: use cp":                 {file, t.TempDir()},
		"from one host to another":              {"h:a", "rdma://h/b"},
		"want rdma://HOST[:PORT]/PATH":          {file, "rdma:///x"},
		"wants what to copy, and where to":      {file},
		"choose rdma or tcp":                    {"--transport", "udp", file, "h:"},
		"does not begin with -":                 {"--", file, "-oProxyCommand=x:/"},
		"which sends one file to a server with": {"--chunks", "1", file, file, "rdma://127.0.0.1/"},
		"nobody listens at that port":           {file, "rdma://127.0.0.1:9/"},
		"for --serve":                           {"--write", file, "h:"},
	} {
		fails(t, d.cp(t, args...), want)
	}
}

// TestTwoHosts copies between two hosts, over RDMA and over TCP.
func TestTwoHosts(t *testing.T) {
	a, b := two(t)
	for _, transport := range []string{"rdma", "tcp"} {
		dir, from, back := t.TempDir(), t.TempDir(), t.TempDir()
		s := b.serve(t, dir, "--public", "--write", "--transport", transport)
		if out := s.Output(); !strings.Contains(out, "everybody on the hosts that reach these addresses may fetch and send files") {
			t.Errorf("the server says\n%s", out)
		}
		const size = 15<<20 + 1
		for i := range 20 {
			write(t, filepath.Join(from, "d", fmt.Sprint(i)), content(1000*i))
		}
		big := write(t, filepath.Join(from, "big"), content(size))
		run := func() {
			a.cp(t, "--transport", transport, "-r", big, filepath.Join(from, "d"), s.url("")).OK(t, minute)
			a.cp(t, "--transport", transport, "-r", s.url("big"), s.url("d"), back).OK(t, minute)
		}
		if transport == "rdma" {
			a.Carried(t, harness.Traffic{Bytes: size}, run)
		} else {
			run()
		}
		for _, at := range []string{dir, back} {
			same(t, filepath.Join(at, "big"), content(size))
			for i := range 20 {
				same(t, filepath.Join(at, "d", fmt.Sprint(i)), content(1000*i))
			}
		}
		s.Signal(syscall.SIGTERM)
		s.OK(t, minute)
	}
}

// TestKilled: whichever side dies in the middle, no partial file gets the final name, and the next copy does not send
// the received part again.
func TestKilled(t *testing.T) {
	d := here(t)
	d.NoLeaks(t)
	const size = 150 << 20
	from := t.TempDir()
	big := write(t, filepath.Join(from, "big"), content(size))
	for _, c := range []struct {
		name   string
		client bool // dies
		put    bool
	}{{"client that sends", true, true}, {"client that fetches", true, false}, {"server that receives", false, true}, {"server that sends", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			dir, to := t.TempDir(), t.TempDir()
			target := dir
			if !c.put {
				if err := os.Link(big, filepath.Join(dir, "big")); err != nil {
					t.Fatal(err)
				}
				target = to
			}
			s := d.serve(t, dir, "--public", "--write")
			args := []string{"-v", big, s.url("")}
			if !c.put {
				args = []string{"-v", s.url("big"), to}
			}
			client := midway(t, d, target, size, func() *harness.Process { return d.cp(t, args...) })
			if c.client {
				client.Signal(syscall.SIGKILL)
				client.Ended(minute)
			} else {
				s.Signal(syscall.SIGKILL)
				s.Ended(minute)
			}
			resume(d.Process)
			if c.client {
				if got := names(t, target); got != ".big.vrdma-partial" {
					t.Errorf("left behind: %s", got)
				}
				if !harness.Poll(minute, func() bool { return d.Established(t) == 0 }) {
					t.Error("the server keeps the connections")
				}
				client = d.cp(t, args...)
			} else {
				d.AwaitVacant(t, s.port)
				s.start(t)
			}
			client.OK(t, minute)
			same(t, filepath.Join(target, "big"), content(size))
			if got := names(t, target); got != "big" {
				t.Errorf("left behind: %s", got)
			}
		})
	}
}

// midway stops the daemon in the middle of a copy of big. It repeats a copy that ended, or nearly ended, too early.
func midway(t *testing.T, d *host, target string, size int64, start func() *harness.Process) *harness.Process {
	t.Helper()
	t.Cleanup(func() { resume(d.Process) })
	arrived := func() int64 {
		var st syscall.Stat_t
		if syscall.Stat(filepath.Join(target, ".big.vrdma-partial"), &st) != nil {
			return 0
		}
		return st.Blocks * 512
	}
	for end := time.Now().Add(minute); time.Now().Before(end); {
		client := start()
		for arrived() == 0 && !client.Ended(0) && time.Now().Before(end) {
		}
		halt(d.Process)
		// The data in flight is a small part of the other half.
		if n := arrived(); n > 0 && n < size/2 {
			return client
		}
		resume(d.Process)
		client.OK(t, minute)
		if err := os.Remove(filepath.Join(target, "big")); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no copy was caught in its middle")
	return nil
}

// TestDiskFull: a full disk is an error, before or during the copy, and no partial file is left.
func TestDiskFull(t *testing.T) {
	harness.Need(t, "unshare", "mount")
	d := here(t)
	dir, from := t.TempDir(), t.TempDir()
	s := &server{h: d, port: harness.FreePort(t)}
	s.Process = harness.Spawn(t, d.inside("unshare", "--mount", "sh", "-c",
		fmt.Sprintf("mount -t tmpfs -o size=8m none %s && exec %s cp --serve %s --public --write --listen 127.0.0.1:%d", dir, harness.Binary(), dir, s.port)))
	s.Printed(t, listening, minute)
	inside := fmt.Sprintf("/proc/%d/root%s", s.PID(), dir)
	big := write(t, filepath.Join(from, "big"), content(12<<20))
	fails(t, d.cp(t, big, s.url("")), "big: no space left on device: it needs 12582912 bytes")
	// A sparse file may fit, so it is tried.
	if err := os.Truncate(big, 100<<20); err != nil {
		t.Fatal(err)
	}
	small := write(t, filepath.Join(from, "small"), content(100))
	both := d.cp(t, big, small, s.url(""))
	fails(t, both, "big: no space left on device")
	// Files are copied at the same time, so the small one may also find no space; then there is an error for it.
	if got := names(t, inside); got != "small" && !(got == "" && strings.Contains(both.Output(), "small: no space left on device")) {
		t.Errorf("left behind: %q\n%s", got, both.Output())
	}
	if s.Ended(0) {
		t.Error("the server is gone")
	}
}
