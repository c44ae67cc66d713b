package containers

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// own is a library that an image names in its own /etc/ld.so.preload.
const own = "/lib/x86_64-linux-gnu/libnl-3.so.200"

// showMerged prints the preloaded libraries of a program and its devices.
const showMerged = "cat /etc/ld.so.preload; sed -n 's|.* /|/|p' /proc/self/maps; ibv_devices"

// mergedIn checks it.
func mergedIn(t *testing.T, out string) {
	t.Helper()
	for _, want := range []string{own + "\n/run/vrdma/vrdma.sock.d/libvrdma.so\n", "/libnl-3.so.200.", "/libvrdma.so\n", "rxe0"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
}

// The container sees one /etc/ld.so.preload with the image's lines and the NIC's. The image's own file does not change.
func TestMerge(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.write(t, "/images/bookworm/etc/ld.so.preload", own+"\n")
	for name, flags := range map[string][]string{"plain": nil, "hardened": hard} {
		t.Run(name, func(t *testing.T) {
			mergedIn(t, h.run(t, podman("bookworm", append(device("default"), flags...), "sh", "-c", showMerged)...))
		})
	}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/images/bookworm/etc/ld.so.preload", h.pid)); err != nil || string(text) != own+"\n" {
		t.Errorf("the image's file: %q, %v", text, err)
	}
}

// When something keeps a container's programs from the NIC, the container still starts, and `vrdma events` gives the
// reason.
func TestLook(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	h.run(t, container{"bookworm", "red.web", nil}.argv("true")...)
	if out := h.run(t, "vrdma", "events", "red/web"); strings.Contains(out, "warned") {
		t.Errorf("an image that is fine:\n%s", out)
	}
	h.stay(t, "fine", container{"bookworm", "default", nil})
	if out := h.run(t, "vrdma", "nic", "check", "fine"); out != "" {
		t.Errorf("vrdma nic check:\n%s", out)
	}
	// A user who may not open the NIC: the event says so, every program runs, and a program that needs the device says why.
	user := container{"bookworm", "red.db", []string{"--user", "1000"}}
	p := h.start(t, user.argv("sh", "-c", "true && ibv_devinfo")...)
	if p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "user 1000 may not open this container's NIC") || strings.Contains(p.Output(), "ld.so") {
		t.Errorf("a container with another user: exit %d\n%s", p.Code(), p.Output())
	}
	if out := h.run(t, "vrdma", "events", "red/db"); !strings.Contains(out, "user 1000 may not open NIC red/db") || !strings.Contains(out, "open: {uids: [1000]}") {
		t.Errorf("the events of its NIC:\n%s", out)
	}
	h.apply(t, `{apiVersion: vrdma.io/v1, kind: NIC, metadata: {name: db, tenant: red}, spec: {network: train, address: 10.1.0.2, open: {uids: [1000]}}}`)
	if out := h.run(t, user.argv("ibv_devinfo")...); !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("after spec.open names the user:\n%s", out)
	}
	h.run(t, "sh", "-c", "rm /images/bookworm/usr/lib/*/libibverbs/librxe-*")
	h.stay(t, "bare", container{"bookworm", "default", nil})
	if p := h.start(t, "vrdma", "nic", "check", "bare"); p.Wait(t, minute) != 1 || !strings.Contains(p.Output(), "rxe provider is not installed") {
		t.Errorf("vrdma nic check: exit %d\n%s", p.Code(), p.Output())
	}
	if p := h.start(t, "vrdma", "nic", "check", "nobody"); p.Wait(t, minute) != 2 || !strings.Contains(p.Output(), "podman has no container of that name") {
		t.Errorf("vrdma nic check of no container: exit %d\n%s", p.Code(), p.Output())
	}
	pod := []string{"--annotation", "io.kubernetes.cri.sandbox-namespace=team", "--annotation", "io.kubernetes.cri.sandbox-name=pod"}
	h.run(t, container{"bookworm", "red.web", pod}.argv("true")...)
	if out := h.run(t, "vrdma", "events", "red/web"); !strings.Contains(out, "warned") || !strings.Contains(out, "container team/pod: libibverbs' rxe provider is not installed") {
		t.Errorf("an image without the provider:\n%s", out)
	}
}
