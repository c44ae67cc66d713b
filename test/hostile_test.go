package test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// A hostile program harms only itself. Beside it a pair that checks every byte goes on, and the daemon lives and
// releases everything afterwards.
func TestHostileProgram(t *testing.T) {
	bin := harness.Compile(t, "hostile")
	list, err := exec.Command(bin, "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	d := harness.Device(t)
	for _, attack := range strings.Fields(string(list)) {
		t.Run(attack, func(t *testing.T) {
			innocent := startStream(t, d, 0)
			p := d.Launch(t, bin, attack)
			p.Wait(t, minute)
			if !strings.Contains(p.Output(), "begun") {
				t.Errorf("the attack did not begin:\n%s", p.Output())
			}
			if d.Process.Ended(0) {
				t.Fatalf("the daemon died of %s:\n%s", attack, harness.Tail(d.Process.Output(), 60))
			}
			d.Gone(t, p.PID())
			stillRuns(t, innocent)
			startStream(t, d, 640).finishes(t)
		})
	}
}

// Every kind of object has a limit for each session.
func TestLimits(t *testing.T) {
	config := filepath.Join(t.TempDir(), "vrdma.yaml")
	const limit = "20"
	text := "limits:\n"
	for _, kind := range []string{"pds", "mrs", "cqs", "qps", "srqs", "ahs", "mws", "channels"} {
		text += "  " + kind + ": " + limit + "\n"
	}
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d := harness.Start(t, harness.Options{Args: []string{"--config", config}})
	d.NoLeaks(t)
	t.Log(d.Run(t, minute, harness.Compile(t, "limits"), limit))
}

// Any program that may open the socket may send any bytes.
func TestHostileMessages(t *testing.T) {
	d := harness.Device(t)
	innocent := startStream(t, d, 0)
	hello := func(kind uint32) []byte {
		b := make([]byte, 4*4+16+32+32+64)
		binary.NativeEndian.PutUint32(b, 0x4d445256)
		binary.NativeEndian.PutUint32(b[4:], 1)
		binary.NativeEndian.PutUint32(b[8:], kind)
		return b
	}
	r := rand.New(rand.NewPCG(1, 2))
	garbage := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for _, c := range []struct {
		name     string
		messages func() [][]byte
	}{
		{"nothing", func() [][]byte { return nil }},
		{"empty", func() [][]byte { return [][]byte{{}} }},
		{"short", func() [][]byte { return [][]byte{hello(1)[:7]} }},
		{"long", func() [][]byte { return [][]byte{garbage(200000)} }},
		{"wrong_magic", func() [][]byte { return [][]byte{garbage(160)} }},
		{"wrong_version", func() [][]byte {
			h := hello(1)
			binary.NativeEndian.PutUint32(h[4:], 99)
			return [][]byte{h}
		}},
		{"wrong_kind", func() [][]byte { return [][]byte{hello(77)} }},
		{"wrong_token", func() [][]byte { return [][]byte{append(hello(2)[:16], garbage(144)...)} }},
		{"process_then_garbage", func() [][]byte {
			return [][]byte{hello(1), garbage(16), garbage(64), garbage(4096), {}}
		}},
		{"control_then_garbage", func() [][]byte {
			return [][]byte{hello(4), []byte("{"), []byte(`{"op":"status","label":` + strings.Repeat("[", 30000)), garbage(1000)}
		}},
		{"huge_counts", func() [][]byte {
			m := make([]byte, 16)
			for _, off := range []int{0, 4, 8} {
				binary.NativeEndian.PutUint32(m[off:], 0xffffffff)
			}
			m[0], m[1], m[2], m[3] = 1, 0, 0, 0
			return [][]byte{hello(1), m}
		}},
		{"hello_twice", func() [][]byte { return [][]byte{hello(1), hello(1), hello(2)} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 20 {
				fd := rawConnect(t, d.Socket)
				for _, m := range c.messages() {
					syscall.Sendto(fd, m, syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, nil)
				}
				drain(fd)
				syscall.Close(fd)
			}
		})
	}
	t.Run("descriptors", func(t *testing.T) {
		for range 50 {
			fd := rawConnect(t, d.Socket)
			null, err := os.Open("/dev/null")
			if err != nil {
				t.Fatal(err)
			}
			fds := make([]int, 200)
			for i := range fds {
				fds[i] = int(null.Fd())
			}
			syscall.Sendmsg(fd, hello(1), syscall.UnixRights(fds...), nil, syscall.MSG_NOSIGNAL)
			drain(fd)
			syscall.Sendmsg(fd, garbage(32), syscall.UnixRights(fds...), nil, syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT)
			syscall.Close(fd)
			null.Close()
		}
	})
	t.Run("connections", func(t *testing.T) {
		// Many clients that send nothing do not keep others out.
		var fds []int
		defer func() {
			for _, fd := range fds {
				syscall.Close(fd)
			}
		}()
		for range 300 {
			fds = append(fds, rawConnect(t, d.Socket))
		}
		d.Run(t, minute, "ibv_devinfo")
	})
	if d.Process.Ended(0) {
		t.Fatalf("the daemon died:\n%s", harness.Tail(d.Process.Output(), 60))
	}
	stillRuns(t, innocent)
}

func rawConnect(t *testing.T, socket string) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}); err != nil {
		syscall.Close(fd)
		t.Fatal(fmt.Errorf("connect to %s: %w", socket, err))
	}
	syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Usec: 20000})
	return fd
}

// drain reads answers until 20 ms pass without one.
func drain(fd int) {
	b := make([]byte, 65536)
	for range 20 {
		n, _, _, _, err := syscall.Recvmsg(fd, b, nil, 0)
		if err != nil || n == 0 {
			return
		}
	}
}
