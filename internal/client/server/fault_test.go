package server

import (
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// TestFault: memory of a virtual machine is taken away while a session's goroutine uses it.
func TestFault(t *testing.T) {
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED) // the file is empty
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	s := &Server{log: slog.New(slog.DiscardHandler)}
	s.guarded(nil, credentials.Caller{}, func(*protocol.Conn, credentials.Caller) error {
		mem[0] = 1
		t.Error("there is memory")
		return nil
	})
}

// TestFaultsOf: rules of a program. It cannot have those of NICs.
func TestFaultsOf(t *testing.T) {
	rules, err := faultsOf(&protocol.Hello{Faults: "drop,packet=1 rnr"})
	if err != nil || len(rules) != 2 || rules[1].Name != "run/2" {
		t.Errorf("got %v, %v", rules, err)
	}
	if _, err := faultsOf(&protocol.Hello{Faults: "drop,packet=1 suspend,for=1s"}); err == nil || !strings.Contains(err.Error(), "vrdma fault add") {
		t.Errorf("a program suspends its NIC: %v", err)
	}
}
