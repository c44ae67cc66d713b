package containers

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// stay starts a container that keeps running, and waits until it runs.
func (h *host) stay(t *testing.T, name string, c container) {
	t.Helper()
	argv := c.argv("sleep", "1000")
	h.run(t, append([]string{argv[0], argv[1], "-d", "--name", name}, slices.DeleteFunc(argv[2:], func(s string) bool { return s == "--rm" })...)...)
}

// id returns a container's ID.
func (h *host) id(t *testing.T, name string) string {
	t.Helper()
	id := strings.TrimSpace(h.run(t, "podman", "inspect", "-f", "{{.ID}}", name))
	if len(id) != 64 {
		t.Fatalf("container %s has the id %q", name, id)
	}
	return id[:12]
}

// exec starts a program in a running container.
func (h *host) exec(t *testing.T, name string, program ...string) *harness.Process {
	t.Helper()
	return h.start(t, append([]string{"podman", "exec", name}, program...)...)
}

// A declared NIC has one workload at a time.
func TestOneWorkload(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	h.stay(t, "a", container{"bookworm", "red.web", nil})
	s := h.exec(t, "a", "rping", "-s", "-a", "10.1.0.1")
	h.listening(t, s, "10.1.0.1:7174")
	if out := h.exec(t, "a", "ibv_devinfo").OK(t, minute); !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("a second program of the same container:\n%s", out)
	}
	holder := "bound to container " + h.id(t, "a")
	for name, c := range map[string]struct {
		argv []string
		want string
	}{
		"another container":      {container{"bookworm", "red.web", nil}.argv("ibv_devinfo"), " cannot start: NIC red/web is " + holder},
		"another without a hook": {[]string{"sh", "-c", strings.Join(podman("bookworm", []string{"$(vrdma nic args red/web)"}, "ibv_devinfo"), " ")}, "NIC red/web is busy: it is " + holder},
		"the host":               {[]string{"vrdma", "run", "-q", "--nic", "red/web", "--", "ibv_devinfo"}, "NIC red/web is busy: it is " + holder},
	} {
		p := h.start(t, c.argv...)
		if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), c.want) {
			t.Errorf("%s, while the container has the NIC: exit %d, want %q:\n%s", name, code, c.want, p.Output())
		}
	}
	if out := h.run(t, "vrdma", "events", "red/web"); !strings.Contains(out, holder) {
		t.Errorf("vrdma events does not say who has the NIC:\n%s", out)
	}
	// The container is killed, and the next one gets the NIC.
	h.run(t, "podman", "kill", "a")
	if out := h.run(t, container{"bookworm", "red.web", nil}.argv("ibv_devinfo")...); !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("after the first container was killed:\n%s", out)
	}
	// It starts again in another network namespace.
	h.run(t, "podman", "start", "a")
	if out := h.exec(t, "a", "ibv_devinfo").OK(t, minute); !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("after it was started again:\n%s", out)
	}
}

// A container outlives the daemon and finds the next one. Programs that have the device open learn that it is gone; new
// programs can open it.
func TestDaemonRestarts(t *testing.T) {
	h := newHost(t, "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	h.stay(t, "a", container{"bookworm", "red.web", nil})
	h.stay(t, "b", container{"bookworm", "default", nil})
	h.apply(t, ownNetwork)
	h.stay(t, "c", container{"bookworm", "red.a", bridged("10.88.0.10")})
	all := []string{"a", "b", "c"}
	for _, c := range []struct {
		name string
		end  func()
	}{
		{"stopped", func() { h.stop(t) }},
		{"killed", func() {
			h.run(t, "kill", "-9", strconv.Itoa(h.status(t).Pid))
			h.daemon.Wait(t, minute)
		}},
	} {
		var watching []*harness.Process
		for _, name := range all {
			p := h.exec(t, name, "ibv_asyncwatch")
			p.Printed(t, "async event FD", minute)
			watching = append(watching, p)
		}
		c.end()
		for _, p := range watching {
			p.Printed(t, "IBV_EVENT_DEVICE_FATAL", minute)
		}
		for _, name := range all {
			// The shared object is still there: ld.so has nothing to say.
			if out := h.exec(t, name, "true").OK(t, minute); out != "" {
				t.Errorf("container %s after the daemon was %s: a program that needs no device prints\n%s", name, c.name, out)
			}
			p := h.exec(t, name, "ibv_devinfo")
			if p.Wait(t, minute) == 0 || !strings.Contains(p.Output(), "the vrdma daemon on this container's host") {
				t.Errorf("container %s after the daemon was %s: exit %d, want advice for a container:\n%s", name, c.name, p.Code(), p.Output())
			}
		}
		h.serve(t)
		for _, name := range all {
			if out := h.exec(t, name, "ibv_devinfo").OK(t, minute); !strings.Contains(out, "PORT_ACTIVE") {
				t.Errorf("%s, container %s: a new program after the daemon was %s:\n%s", c.name, name, c.name, out)
			}
		}
		for _, name := range all {
			h.exec(t, name, "sh", "-c", "kill -9 $(pidof ibv_asyncwatch)").Wait(t, minute)
		}
	}
}

// An ordinary user's daemon and containers work without any set-up.
func TestRootless(t *testing.T) {
	h := newHost(t, "bookworm")
	h.run(t, "sh", "-c", "cp -a /images/bookworm /images/alice && chown -R 1000:1000 /images/alice") // its own root's, inside
	argv := strings.Join(podman("alice", []string{"$(vrdma nic args default)"}), " ")
	run := func(flags, program string) *harness.Process {
		return h.startAs(t, alice, "sh", "-c", strings.Replace(argv, "--rm", "--rm "+flags, 1)+" "+program)
	}
	for name, flags := range map[string]string{"root": "", "user": "--user 33", "hardened": strings.Join(hard, " ")} {
		if out := run(flags, "ibv_devinfo").OK(t, minute); !strings.Contains(out, "PORT_ACTIVE") {
			t.Errorf("%s:\n%s", name, out)
		}
	}
	s := run("", "rping -s -a 127.0.0.1 -C 5 -V")
	harness.Poll(minute, func() bool {
		return s.Ended(0) || run("", "rping -c -a 127.0.0.1 -C 5 -V").Wait(t, minute) == 0
	})
	s.OK(t, minute)
	out := h.startAs(t, alice, append([]string{"vrdma", "run", "-q", "--"}, podman("alice", nil, "ibv_devinfo")...)...).OK(t, minute)
	if !strings.Contains(out, "PORT_ACTIVE") {
		t.Errorf("vrdma run -- podman run:\n%s", out)
	}
}
