package containers

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"vrdma/test/harness"
)

// The daemon is upgraded while containers live: the libvrdma.so that they were started with, that of the commit before the protocol changed
// last, is served by today's daemon; when that has started again its programs are told, and new ones have the new library.
func TestUpgrade(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all") // compiling takes longer than all the rest
	}
	library := harness.LibraryBefore(t)
	if library == "" {
		t.Skip("there is no history here to take an older library from")
	}
	older, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	newer, err := os.ReadFile(harness.Library())
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	// The NICs' directories have links to this one file, which keeps its inode.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root%s.d/libvrdma.so", h.pid, socket), older, 0o755); err != nil {
		t.Fatal(err)
	}
	at := []string{"-e", "VRDMA_SOCKET=" + socket} // so old a library does not look beside itself
	h.stay(t, "a", container{"bookworm", "red.web", at})
	h.stay(t, "b", container{"bookworm", "red.db", at})
	has := func(name string, want []byte) {
		t.Helper()
		out := h.exec(t, name, "sha256sum", "/run/vrdma/vrdma.sock.d/libvrdma.so").OK(t, minute)
		if !strings.HasPrefix(out, fmt.Sprintf("%x", sha256.Sum256(want))) {
			t.Errorf("container %s has another library: %s", name, out)
		}
	}
	has("a", older)
	ping(t, h, h, "a", "b", "10.1.0.1")
	s := h.exec(t, "a", "rping", "-s", "-P", "-a", "10.1.0.1")
	h.listening(t, s, "10.1.0.1:7174")
	c := h.exec(t, "b", "rping", "-c", "-v", "-a", "10.1.0.1")
	c.Printed(t, "ping data", minute)
	watch := h.exec(t, "a", "ibv_asyncwatch")
	watch.Printed(t, "async event FD", minute)
	h.stop(t)
	watch.Printed(t, "IBV_EVENT_DEVICE_FATAL", minute)
	c.Wait(t, minute) // its connection has ended
	h.serve(t)
	has("a", newer)
	has("b", newer)
	h.exec(t, "a", "sh", "-c", "kill -9 $(pidof rping ibv_asyncwatch)").Wait(t, minute)
	ping(t, h, h, "a", "b", "10.1.0.1")
}
