package lab

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestTableInC: the table's client updates and reads by messages and by READ, and checks every value. The server counts
// messages: two for each update and read by RPC, one for the table's address, one for the end, and none for READs.
func TestTableInC(t *testing.T) {
	d := harness.Device(t)
	dir := t.TempDir()
	server, client := program(t, dir, "kv_server"), program(t, dir, "kv_client")
	n := harness.Pick(500, 100_000)
	for _, flags := range [][]string{nil, {"-i"}} {
		t.Run(strings.Join(append([]string{"sends"}, flags...), " "), func(t *testing.T) {
			d.Carried(t, harness.Traffic{Packets: uint64(4 * n)}, func() { table(t, d, server, client, n, flags) })
		})
	}
}

// table runs a server and its client, with n operations of each kind.
func table(t *testing.T, d *harness.Daemon, server, client string, n int, flags []string) {
	t.Helper()
	port := harness.FreePort(t)
	s := d.Launch(t, append([]string{server, "-p", strconv.Itoa(port)}, flags...)...)
	d.AwaitManaged(t, s, port)
	out := d.Run(t, minute, append([]string{client, "-s", "127.0.0.1", "-p", strconv.Itoa(port), "-n", strconv.Itoa(n)}, flags...)...)
	for _, kind := range []string{"updates by RPC", "reads by RPC", "one-sided reads"} {
		if !strings.Contains(out, fmt.Sprintf("%d %s: ", n, kind)) {
			t.Errorf("the client does not tell of %s:\n%s", kind, out)
		}
	}
	said := s.OK(t, minute)
	if want := fmt.Sprintf("handled %d messages", 2*n+2); !strings.Contains(said, want) {
		t.Errorf("the server does not say %q:\n%s", want, said)
	}
}

// TestTableDeath kills client and server in the middle; nothing is left. (The server alone would wait for ever for
// completions, because it reads no event of the client's end.)
func TestTableDeath(t *testing.T) {
	d := harness.Device(t)
	dir := t.TempDir()
	server, client := program(t, dir, "kv_server"), program(t, dir, "kv_client")
	for _, first := range []string{"client", "server"} {
		port := harness.FreePort(t)
		s := d.Launch(t, server, "-p", strconv.Itoa(port))
		d.AwaitManaged(t, s, port)
		c := d.Launch(t, client, "-p", strconv.Itoa(port), "-n", "1000000000")
		if !harness.Poll(minute, func() bool { return d.Established(t) > 0 }) {
			t.Fatalf("not connected\n%s", c.Output())
		}
		order := []*harness.Process{c, s}
		if first == "server" {
			slices.Reverse(order)
		}
		for _, p := range order {
			p.Signal(syscall.SIGKILL)
			if !p.Ended(minute) {
				t.Fatalf("%s: %s", p.Name, p.Fate())
			}
		}
		d.Unmanaged(t)
	}
}

// TestFileInC sends files of zero, one and several chunks, and compares them.
func TestFileInC(t *testing.T) {
	d := harness.Device(t)
	dir, into := t.TempDir(), t.TempDir()
	server, client := program(t, dir, "file_server"), program(t, dir, "file_client")
	port := harness.FreePort(t)
	s := d.Launch(t, server, "-p", strconv.Itoa(port), "-d", into)
	d.AwaitManaged(t, s, port)
	send := func(name string, data []byte) *harness.Process {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return d.Launch(t, client, "-p", strconv.Itoa(port), "127.0.0.1", path)
	}
	for name, size := range map[string]int{"empty": 0, "byte": 1, "chunk": 10 << 20, "chunks": 25 << 20} {
		data := make([]byte, size)
		rand.Read(data)
		out := send(name, data).OK(t, minute)
		if want := fmt.Sprintf("sent %d bytes", size); !strings.Contains(out, want) {
			t.Errorf("%s: the client does not say %q:\n%s", name, want, out)
		}
		if got, err := os.ReadFile(filepath.Join(into, name)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes came of %d: %v", name, len(got), size, err)
		}
	}
	// It overwrites nothing: the server ends, and its client notices.
	c := send("byte", []byte("other"))
	if c.Wait(t, minute) == 0 {
		t.Errorf("a second file of the same name was sent:\n%s", c.Output())
	}
	if !s.Ended(minute) || s.Code() == 0 {
		t.Errorf("the server: %s\n%s", s.Fate(), s.Output())
	}
	if got, err := os.ReadFile(filepath.Join(into, "byte")); err != nil || len(got) != 1 {
		t.Errorf("the first file has %d bytes now: %v", len(got), err)
	}
}

// TestFileAndCp runs the C programs against `vrdma cp --chunks 1`, which speaks their protocol.
func TestFileAndCp(t *testing.T) {
	d := harness.Device(t)
	dir, into := t.TempDir(), t.TempDir()
	server, client := program(t, dir, "file_server"), program(t, dir, "file_client")
	data := make([]byte, 25<<20)
	rand.Read(data)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(name string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(into, name)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes came of %d: %v", name, len(got), len(data), err)
		}
	}
	port := harness.FreePort(t)
	theirs := d.Launch(t, server, "-p", strconv.Itoa(port), "-d", into, "-1")
	d.AwaitManaged(t, theirs, port)
	harness.Spawn(t, d.Command("cp", "--chunks", "1", file, fmt.Sprintf("rdma://127.0.0.1:%d/ours", port))).OK(t, minute)
	theirs.OK(t, minute)
	check("ours")

	port = harness.FreePort(t)
	ours := harness.Spawn(t, d.Command("cp", "--serve", into, "--chunks", "1", "--public", "--write", "--listen", fmt.Sprintf("127.0.0.1:%d", port)))
	d.AwaitManaged(t, ours, port)
	d.Run(t, minute, client, "-p", strconv.Itoa(port), "127.0.0.1", file)
	ours.Printed(t, "file: received", minute)
	check("file")
	ours.End()
}
