package networks

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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
	// sockets: its programs have their TCP connections over RDMA.
	sockets bool
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

// start is program with a standard input.
func (r *rover) start(t *testing.T, in io.Reader, argv ...string) *harness.Process {
	t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=" + r.w.a.space.Path(), "--"}, argv...)...)
	library := harness.Library()
	if r.sockets {
		found, _ := filepath.Glob("/usr/lib/*/rsocket/librspreload.so") // the pattern is fine
		if len(found) != 1 {
			t.Fatalf("librspreload.so: found %v, want one", found)
		}
		library = harness.SocketsLibrary() + ":" + found[0] + ":" + library
	}
	cmd.Env = append(os.Environ(), "VRDMA_SOCKET="+filepath.Join(r.link, "vrdma.sock"), "LD_PRELOAD="+library)
	cmd.Stdin = in
	p := harness.Spawn(t, cmd)
	p.Name = strings.Join(argv, " ")
	return p
}

// newRover makes two hosts, a NIC that may be on each of them and is on the first, and a peer on each.
func newRover(t *testing.T) *rover {
	t.Helper()
	return newRoverOf(t, func(objects string) string { return objects })
}

// newRoverOf is newRover with changed objects, and with flags of the daemons.
func newRoverOf(t *testing.T, change func(objects string) string, flags ...string) *rover {
	t.Helper()
	w := newLabOf(t, 2, 1, flags...)
	w.a.declare(t, change(twoTenants()+object("NIC", "name: roams, tenant: red", "network: train, address: 10.1.0.9")))
	w.a.ready(t, "red/web", "red/roams")
	w.b.ready(t, "red/db", "red/roams")
	return w.rove(t, "red/roams", w.a)
}

// moves moves the NIC to the other host and back, and gives up a move. check is called after each.
func (r *rover) moves(t *testing.T, check func()) {
	t.Helper()
	check()
	for range harness.Pick(1, 10) {
		r.moveTo(t, r.w.b)
		check()
		r.moveTo(t, r.w.a)
		check()
		file := r.leave(t)
		r.at.must(t, "nic", "stay", r.nic)
		check()
		if out, err := r.w.b.vrdma("nic", "arrive", r.nic, file); err == nil || !strings.Contains(out, "its state was taken") {
			t.Fatalf("the state of a NIC that has stayed is accepted: %v\n%s", err, out)
		}
	}
}

// grows waits until a program prints more.
func grows(t *testing.T, p *harness.Process, by int) {
	t.Helper()
	before := len(p.Output())
	if !harness.Poll(minute, func() bool { return len(p.Output()) > before+by || p.Ended(0) }) || p.Ended(0) {
		t.Fatalf("%s does not go on: %s\n%s", p.Name, p.Fate(), harness.Tail(p.Output(), 10))
	}
}

// TestLiveMove moves a NIC with the program that uses it: a server of rdma_cm that sleeps and checks its data. It has a peer on the
// host that the NIC leaves, and one on the host that it comes to. It returns. A move that is given up interrupts only, and its
// state is of no use afterwards.
func TestLiveMove(t *testing.T) {
	t.Parallel()
	r := newRover(t)
	server := r.start(t, nil, "rping", "-s", "-P", "-V", "-a", "10.1.0.9")
	r.w.a.listens(t, "red/roams", server)
	r.w.b.says(t, "10.1.0.9", "get", "nic", "red/roams")
	var peers []*harness.Process
	for h, nic := range map[*host]string{r.w.a: "red/web", r.w.b: "red/db"} {
		p := h.program(t, nic, "stdbuf", "-oL", "rping", "-c", "-V", "-v", "-a", "10.1.0.9")
		p.Printed(t, "ping data", minute)
		peers = append(peers, p)
	}
	r.moves(t, func() {
		for _, p := range peers {
			grows(t, p, 4096)
		}
		if server.Ended(0) {
			t.Fatalf("the server: %s\n%s", server.Fate(), server.Output())
		}
	})
	// New connections are accepted, too.
	r.w.b.program(t, "red/db", "rping", "-c", "-V", "-C", "10", "-a", "10.1.0.9").OK(t, minute)
}

// TestLiveMoveData moves a NIC while a program exchanges messages of every operation with a peer on the other host. Both poll, and check
// every byte.
func TestLiveMoveData(t *testing.T) {
	t.Parallel()
	r := newRover(t)
	exchange := harness.Compile(t, "exchange")
	number := harness.FreePort(t)
	port := strconv.Itoa(number)
	rounds := harness.Pick("4000", "40000")
	server := r.start(t, nil, exchange, "-n", rounds, "-u", "16", port)
	harness.Listening(t, server, number, minute)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the server: %s\n%s", server.Fate(), server.Output())
		}
	})
	client := r.w.b.program(t, "red/db", exchange, "-n", rounds, "-u", "16", port, r.w.a.ip)
	r.moves(t, func() {
		if r.w.b.sends(t, "red/db", client, 1<<20); server.Ended(0) {
			t.Fatalf("the server: %s\n%s", server.Fate(), server.Output())
		}
	})
	server.OK(t, minute)
	client.OK(t, minute)
}

// TestLiveMoveThreads moves a NIC with a program of several threads, which sleep in epoll sets, register memory, and check their
// messages: all descriptors in the sets stay.
func TestLiveMoveThreads(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"free": {"3"}, "confined": {"3", "confined"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRover(t)
			in, end := io.Pipe()
			p := r.start(t, in, append([]string{harness.Compile(t, "moved")}, args...)...)
			t.Cleanup(func() { end.Close() }) // otherwise a program that has failed is waited for
			p.Printed(t, "round", minute)
			r.moves(t, func() { grows(t, p, 20) })
			end.Close()
			if out := p.OK(t, minute); !strings.Contains(out, "moved: ok") {
				t.Errorf("it says:\n%s", out)
			}
		})
	}
}

// TestLiveMoveRefused: what cannot move says why, and goes on.
func TestLiveMoveRefused(t *testing.T) {
	t.Parallel()
	r := newRover(t)
	refused := func(h *host, says string, args ...string) {
		t.Helper()
		if out, err := h.vrdma(append([]string{"nic"}, args...)...); err == nil || !strings.Contains(out, says) {
			t.Errorf("vrdma nic %s: %v, want %q\n%s", strings.Join(args, " "), err, says, out)
		}
	}
	state := filepath.Join(harness.Directory(t, nil), "state")
	refused(r.w.a, "no program has", "leave", r.nic, state)
	refused(r.w.a, "is not leaving", "stay", r.nic)
	refused(r.w.a, "there is no NIC", "leave", "red/none", state)
	if _, err := os.Lstat(state); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("NICs that do not leave have left a file: %v", err)
	}
	refused(r.w.a, "is no file", "leave", r.nic, os.DevNull)
	pinned := r.w.a.serve(t, "red/web", "10.1.0.1")
	refused(r.w.a, "spec.host", "leave", "red/web", state)
	if pinned.Ended(0) {
		t.Errorf("the program of a NIC that cannot move: %s", pinned.Fate())
	}
	// A forged state, and one of another NIC.
	if err := os.WriteFile(state, []byte("vrdma-nic\n"+strings.Repeat("x", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(r.w.b, "is damaged", "arrive", r.nic, state)
	server := r.start(t, nil, "rping", "-s", "-P", "-V", "-a", "10.1.0.9")
	r.w.a.listens(t, "red/roams", server)
	// Nobody brings the program to the other host.
	file := r.leave(t)
	refused(r.w.b, "this is the state of NIC red/roams", "arrive", "red/db", file)
	refused(r.w.b, "does not come back", "arrive", r.nic, file, "--within", "100ms")
	r.at.must(t, "nic", "stay", r.nic)
	r.w.b.program(t, "red/db", "rping", "-c", "-V", "-C", "10", "-a", "10.1.0.9").OK(t, minute)
	// A stopped program does not let go.
	server.Signal(syscall.SIGSTOP)
	refused(r.w.a, "does not let go", "leave", r.nic, file, "--within", "1s")
	if kept, err := os.ReadFile(file); err != nil || len(kept) == 0 {
		t.Errorf("a NIC that does not leave has emptied the file: %v", err)
	}
	server.Signal(syscall.SIGCONT)
	r.w.b.program(t, "red/db", "rping", "-c", "-V", "-C", "10", "-a", "10.1.0.9").OK(t, minute)
}
