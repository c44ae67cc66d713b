package networks

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// A rover is a NIC that moves, and the place where its programs find the daemon: a link to the NIC's directory on a host.
// The programs are processes of this kernel, so they need no CRIU. All else is as between two machines: the daemons exchange
// nothing but a file.
type rover struct {
	w    *lab
	nic  string
	link string
	at   *host
}

// rove makes a rover on a host.
func (w *lab) rove(t *testing.T, nic string, at *host) *rover {
	t.Helper()
	r := &rover{w: w, nic: nic, link: filepath.Join(harness.Directory(t, nil), "nic")}
	r.goTo(t, at)
	return r
}

// goTo makes the link lead to a host.
func (r *rover) goTo(t *testing.T, h *host) {
	t.Helper()
	r.at = h
	next := r.link + ".next"
	if err := os.Symlink(filepath.Dir(h.nicSocket(r.nic)), next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, r.link); err != nil {
		t.Fatal(err)
	}
}

// program starts a program with the NIC.
func (r *rover) program(t *testing.T, argv ...string) *harness.Process {
	t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=" + r.at.space.Path(), "--"}, argv...)...)
	cmd.Env = append(os.Environ(), "VRDMA_SOCKET="+filepath.Join(r.link, "vrdma.sock"), "LD_PRELOAD="+filepath.Join(filepath.Dir(harness.Binary()), "libvrdma.so"))
	p := harness.Spawn(t, cmd)
	p.Name = strings.Join(argv, " ")
	return p
}

// leave makes the programs let go, and returns the file with the state.
func (r *rover) leave(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(harness.Directory(t, nil), "state")
	r.at.must(t, "nic", "leave", r.nic, file)
	return file
}

// moveTo moves the NIC with its programs.
func (r *rover) moveTo(t *testing.T, h *host) {
	t.Helper()
	file := r.leave(t)
	r.goTo(t, h)
	h.must(t, "nic", "arrive", r.nic, file)
	for _, o := range r.w.hosts {
		o.says(t, `"host": "`+h.name+`"`, "get", "nic", r.nic, "-o", "json")
	}
}

// TestLiveMove moves a NIC between hosts with the programs that use it: one that sleeps and checks its data, with rdma_cm, and one
// that polls. Their connections go on: with a peer on the host that the NIC leaves, and with one on the host that it comes to. It
// returns. A move that is given up leaves everything as it was.
func TestLiveMove(t *testing.T) {
	t.Parallel()
	harness.Need(t, "ib_write_bw")
	w := newLab(t)
	w.a.declare(t, twoTenants()+object("NIC", "name: roams, tenant: red", "network: train, address: 10.1.0.9"))
	w.a.ready(t, "red/web", "red/roams")
	w.b.ready(t, "red/db", "red/roams")
	r := w.rove(t, "red/roams", w.a)
	var running []*harness.Process
	server := r.program(t, "rping", "-s", "-P", "-V", "-a", "10.1.0.9")
	w.a.listens(t, "red/roams", server)
	running = append(running, server)
	w.b.says(t, "10.1.0.9", "get", "nic", "red/roams")
	peers := []struct {
		h   *host
		nic string
	}{{w.a, "red/web"}, {w.b, "red/db"}}
	var clients []*harness.Process
	for _, p := range peers {
		c := p.h.program(t, p.nic, "rping", "-c", "-V", "-v", "-a", "10.1.0.9")
		c.Printed(t, "ping data", minute)
		clients = append(clients, c)
	}
	check := func() {
		t.Helper()
		for i, p := range peers {
			p.h.sends(t, p.nic, clients[i], 1000)
		}
		for _, p := range running {
			if p.Ended(0) {
				t.Fatalf("%s has ended: %s\n%s", p.Name, p.Fate(), p.Output())
			}
		}
	}
	check()
	for range harness.Pick(1, 5) {
		r.moveTo(t, w.b)
		check()
		r.moveTo(t, w.a)
		check()
		r.leave(t)
		w.a.must(t, "nic", "stay", r.nic)
		check()
	}
}
