package containers

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// The daemon is upgraded while containers run. Today's daemon serves the libvrdma.so that they were started with, which
// is from the commit before the last change of the protocol. After the restart its programs get an error, and new
// programs use the new library.
func TestUpgrade(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all") // the compilation takes longer than the rest of the test
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
	// The NICs' directories link to this one file, which keeps its inode.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/root%s.d/libvrdma.so", h.pid, socket), older, 0o755); err != nil {
		t.Fatal(err)
	}
	at := []string{"-e", "VRDMA_SOCKET=" + socket} // such an old library does not look in its own directory
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
	c := h.exec(t, "b", "stdbuf", "-oL", "rping", "-c", "-v", "-a", "10.1.0.1")
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

// olderRelease is a commit whose daemon already had hooks, interfaces and bindings of containers.
const olderRelease = "656f863c"

// install puts the programs of a release first in the host's path, as a package does: it writes new files and renames
// them. A running daemon keeps the old file.
func (h *host) install(t *testing.T, from string) {
	t.Helper()
	for _, name := range []string{"libvrdma.so", "libvrdma-sockets.so", "vrdma"} {
		program, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		at := fmt.Sprintf("/proc/%d/root/usr/sbin/%s", h.pid, name)
		if err := os.WriteFile(at+".new", program, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at+".new", at); err != nil {
			t.Fatal(err)
		}
	}
}

// Today's daemon replaces an older one while containers run. Objects, bindings, usage and interfaces are there again,
// the containers' programs get an error, new ones work, and containers that the older daemon's hooks started end well.
func TestUpgradeDaemon(t *testing.T) {
	if !harness.All() {
		t.Skip("long form: make test-all") // the compilation takes longer than the rest of the test
	}
	older := harness.Release(t, olderRelease)
	if older == "" {
		t.Skip("there is no history here to take an older release from")
	}
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) { upgrade(t, older, how) })
	}
}

func upgrade(t *testing.T, older, how string) {
	h := newHost(t, "bookworm")
	h.install(t, older)
	usage := []string{"--usage", "/var/lib/usage"}
	h.serve(t, usage...)
	if out := h.run(t, "vrdma", "--version"); !strings.Contains(out, olderRelease) {
		t.Fatalf("the host has another version: %s", out)
	}
	h.apply(t, tenants)
	h.apply(t, ownNetwork)
	h.stay(t, "a", container{"bookworm", "red.web", nil})
	h.stay(t, "b", container{"bookworm", "red.db", nil})
	h.stay(t, "c", container{"bookworm", "red.a", bridged("10.88.0.10")})
	h.stay(t, "d", container{"bookworm", "red.b", bridged("10.88.0.11")})
	talks := func() {
		t.Helper()
		ping(t, h, h, "a", "b", "10.1.0.1")
		ping(t, h, h, "c", "d", "10.88.0.10")
		if !harness.Poll(minute, func() bool {
			return h.exec(t, "b", "ping", "-c", "1", "-W", "5", "10.1.0.1").Wait(t, minute) == 0
		}) {
			t.Errorf("b does not reach a by its interface:\n%s", h.exec(t, "a", "ip", "address").OK(t, minute))
		}
	}
	talks()
	var watching []*harness.Process
	for _, name := range []string{"a", "c"} {
		p := h.exec(t, name, "ibv_asyncwatch")
		p.Printed(t, "async event FD", minute)
		watching = append(watching, p)
	}
	sent := h.billed(t, "red", "db")
	if sent == 0 {
		t.Error("the older daemon has metered nothing")
	}
	had := h.run(t, "vrdma", "get", "nics", "-o", "name")
	h.install(t, filepath.Join(harness.Root(), "bin"))
	if how == "stopped" {
		h.stop(t) // by the newer program
	} else {
		h.run(t, "kill", "-9", strconv.Itoa(h.status(t).Pid))
		h.daemon.Wait(t, minute)
	}
	for _, p := range watching {
		p.Printed(t, "IBV_EVENT_DEVICE_FATAL", minute)
	}
	h.serve(t, usage...)
	if out := h.run(t, "vrdma", "get", "nics", "-o", "name"); out != had {
		t.Errorf("NICs:\n%s\nbefore:\n%s", out, had)
	}
	if now := h.billed(t, "red", "db"); now < sent {
		t.Errorf("%d bytes are on the bill, before %d", now, sent)
	}
	if p := h.start(t, container{"bookworm", "red.web", nil}.argv("true")...); p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "bound to container "+h.id(t, "a")) {
		t.Errorf("a second container is not refused: exit %d\n%s", p.Code(), p.Output())
	}
	newer, err := os.ReadFile(harness.Library())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		out := h.exec(t, name, "sha256sum", "/run/vrdma/vrdma.sock.d/libvrdma.so").OK(t, minute)
		if !strings.HasPrefix(out, fmt.Sprintf("%x", sha256.Sum256(newer))) {
			t.Errorf("container %s has another library: %s", name, out)
		}
	}
	talks()
	// Containers that the older daemon's hooks started end through the newer daemon.
	h.run(t, "podman", "rm", "-f", "-t", "0", "a", "b", "c", "d")
	for _, nic := range []string{"red.web", "red.a"} {
		if out := h.run(t, container{"bookworm", nic, nil}.argv("ibv_devinfo")...); !strings.Contains(out, "PORT_ACTIVE") {
			t.Errorf("the next container with %s:\n%s", nic, out)
		}
	}
}

// billed returns how many bytes a NIC has sent according to its bill.
func (h *host) billed(t *testing.T, tenant, nic string) (n uint64) {
	t.Helper()
	for _, r := range h.usage(t).Records {
		if r.Tenant == tenant && r.NIC == nic {
			n += r.Used["transmit_bytes"]
		}
	}
	return n
}
