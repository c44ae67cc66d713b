package networks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestLiveMoveBoth moves both ends of their connections, one after the other and at the same time: from the same host to different
// ones and back. One pair of programs sleeps, the other polls. Both check their data.
func TestLiveMoveBoth(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	w.a.declare(t, twoTenants()+object("NIC", "name: roams, tenant: red", "network: train, address: 10.1.0.9")+
		object("NIC", "name: follows, tenant: red", "network: train, address: 10.1.0.8"))
	for _, h := range w.hosts {
		h.ready(t, "red/roams", "red/follows")
	}
	one, two := w.rove(t, "red/roams", w.a), w.rove(t, "red/follows", w.a)
	server := one.start(t, nil, "rping", "-s", "-P", "-V", "-a", "10.1.0.9")
	w.a.listens(t, "red/roams", server)
	client := two.start(t, nil, "stdbuf", "-oL", "rping", "-c", "-V", "-v", "-a", "10.1.0.9")
	client.Printed(t, "ping data", minute)
	exchange, number := harness.Compile(t, "exchange"), harness.FreePort(t)
	argv := []string{exchange, "-n", harness.Pick("2000", "40000"), "-u", "16", strconv.Itoa(number)}
	pollServer := one.start(t, nil, argv...)
	harness.Listening(t, pollServer, number, minute)
	pollClient := two.start(t, nil, append(argv, w.a.ip)...)
	w.a.opens(t, "red/roams", pollServer)
	w.a.opens(t, "red/follows", pollClient)
	check := func() {
		t.Helper()
		grows(t, client, 4096)
		if server.Ended(0) {
			t.Fatalf("the server: %s\n%s", server.Fate(), server.Output())
		}
	}
	check()
	for range harness.Pick(1, 10) {
		for _, to := range []*host{w.b, w.a} {
			for _, r := range []*rover{one, two} {
				r.moveTo(t, to)
				check()
			}
		}
		// Both are between two hosts at the same time.
		files := map[*rover]string{one: one.leave(t), two: two.leave(t)}
		for _, r := range []*rover{two, one} {
			r.goTo(t, w.b)
			w.b.must(t, "nic", "arrive", r.nic, files[r])
		}
		check()
		one.moveTo(t, w.a)
		check()
		two.moveTo(t, w.a)
		check()
	}
	pollServer.OK(t, 2*minute)
	pollClient.OK(t, 2*minute)
}

// TestLiveMoveWays moves a NIC of an encrypted network, and one between daemons with several loops.
func TestLiveMoveWays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, network string
		flags         []string
	}{
		{"encrypted", "vni: 100, encryption: true,", nil},
		{"loops", "vni: 100,", []string{"--loops", "3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRoverOf(t, func(objects string) string { return strings.Replace(objects, "vni: 100,", c.network, 1) }, c.flags...)
			server := r.start(t, nil, "rping", "-s", "-P", "-V", "-a", "10.1.0.9")
			r.w.a.listens(t, "red/roams", server)
			client := r.w.b.program(t, "red/db", "stdbuf", "-oL", "rping", "-c", "-V", "-v", "-a", "10.1.0.9")
			client.Printed(t, "ping data", minute)
			exchange, number := harness.Compile(t, "exchange"), harness.FreePort(t)
			argv := []string{exchange, "-n", harness.Pick("2000", "20000"), "-u", "16", strconv.Itoa(number)}
			polls := r.start(t, nil, argv...)
			harness.Listening(t, polls, number, minute)
			peer := r.w.b.program(t, "red/db", append(argv, r.w.a.ip)...)
			r.w.a.opens(t, "red/roams", polls)
			r.moves(t, func() { grows(t, client, 4096) })
			polls.OK(t, 2*minute)
			peer.OK(t, 2*minute)
		})
	}
}

// TestLiveMovePerftest moves a NIC with perftest's server or client in the middle of a run without an end, for every operation of a
// reliable connection.
func TestLiveMovePerftest(t *testing.T) {
	t.Parallel()
	r := newRover(t)
	for i, tool := range []string{"ib_write_bw -q 16", "ib_send_bw -q 4 -r 64 -s 4096", "ib_read_bw -o 4", "ib_atomic_bw"} {
		t.Run(tool, func(t *testing.T) {
			number := harness.FreePort(t)
			argv := append(append([]string{"stdbuf", "-oL"}, strings.Fields(tool)...), "-F", "--run_infinitely", "-D", "1", "-p", strconv.Itoa(number))
			var server, client *harness.Process
			if i%2 == 0 {
				server = r.start(t, nil, argv...)
				harness.Listening(t, server, number, minute)
				client = r.w.b.program(t, "red/db", append(argv, r.w.a.ip)...)
			} else {
				server = r.w.b.program(t, "red/db", argv...)
				harness.Listening(t, server, number, minute)
				client = r.start(t, nil, append(argv, r.w.b.ip)...)
			}
			client.Printed(t, "BW average", minute)
			for _, to := range []*host{r.w.b, r.w.a} {
				r.moveTo(t, to)
				grows(t, client, 60) // a line each second
				grows(t, client, 60)
				if server.Ended(0) {
					t.Fatalf("the server: %s\n%s", server.Fate(), server.Output())
				}
			}
			client.Signal(9)
			server.Signal(9)
			client.Ended(minute)
			server.Ended(minute)
		})
	}
}

// TestLiveMoveRedis moves a NIC with redis, which has its TCP connections over RDMA. Clients on both hosts check every value.
func TestLiveMoveRedis(t *testing.T) {
	t.Parallel()
	harness.Need(t, "redis-check-rdb")
	r := newRover(t)
	r.sockets = true
	dir := t.TempDir()
	program := filepath.Join(dir, "redis-server") // another name of a program in redis-tools
	if err := os.Symlink("/usr/bin/redis-check-rdb", program); err != nil {
		t.Fatal(err)
	}
	values := harness.Compile(t, "values")
	server := r.start(t, nil, program, "--bind", "10.1.0.9", "--port", "6379", "--save", "", "--protected-mode", "no", "--dir", dir)
	r.w.a.listens(t, "red/roams", server)
	r.w.b.says(t, "10.1.0.9", "get", "nic", "red/roams")
	var clients []*harness.Process
	for h, nic := range map[*host]string{r.w.a: "red/web", r.w.b: "red/db"} {
		p := h.LaunchWith(t, []string{"--sockets", "--nic", nic}, values, "10.1.0.9", "6379", nic)
		p.Printed(t, "values", minute)
		clients = append(clients, p)
	}
	r.moves(t, func() {
		for _, p := range clients {
			grows(t, p, 20)
		}
		if server.Ended(0) {
			t.Fatalf("the server: %s\n%s", server.Fate(), server.Output())
		}
	})
}

// TestLiveMoveStacks moves a NIC with a program whose registered memory is its own stacks, the parts in use included.
func TestLiveMoveStacks(t *testing.T) {
	t.Parallel()
	r := newRover(t)
	p := r.start(t, nil, harness.CompileWith(t, "ownstack", "gcc", "-libverbs", "-pthread"))
	p.Printed(t, "round", minute)
	r.moves(t, func() { grows(t, p, 20) })
	p.Signal(9)
	p.Ended(minute)
}

// TestLiveMoveMPI moves one rank of Open MPI while it exchanges and checks data with the other.
func TestLiveMoveMPI(t *testing.T) {
	t.Parallel()
	harness.Need(t, "mpirun", "mpicc")
	r := newRover(t)
	program, dir := harness.CompileWith(t, "mpi", "mpicc"), harness.Directory(t, nil)
	stop := filepath.Join(dir, "stop")
	rank := func(socket string) []string {
		return []string{"-np", "1", "env", "VRDMA_SOCKET=" + socket, "LD_PRELOAD=" + harness.Library(), program, stop}
	}
	argv := []string{"--net=" + r.w.a.space.Path(), "--", "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
		"--mca", "pml", "ucx", "--mca", "btl", "^openib,vader,tcp", "--mca", "osc", "ucx",
		"-x", "UCX_TLS=rc_v,self", "-x", "UCX_NET_DEVICES=rxe0:1", "-x", "UCX_LOG_LEVEL=warn"}
	argv = append(argv, rank(r.w.a.nicSocket("red/web"))...)
	argv = append(argv, ":")
	argv = append(argv, rank(filepath.Join(r.link, "vrdma.sock"))...)
	cmd := exec.Command("nsenter", argv...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	p := harness.Spawn(t, cmd)
	p.Name = "mpirun"
	p.Printed(t, "round", minute)
	r.moves(t, func() { grows(t, p, 0) })
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out := p.OK(t, minute)
	for i := range 2 {
		if want := fmt.Sprintf("ok rank %d of 2", i); !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}
