package tenants

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// pingpong runs between two NICs. The sides exchange their addresses over TCP on the host's loopback.
func pingpong(tcp int) (server, client []string) {
	server = []string{"ibv_rc_pingpong", "-g", "0", "-c", "-n", "500", "-p", strconv.Itoa(tcp)}
	return server, append(append([]string{}, server...), "127.0.0.1")
}

// Two tenants have the same addresses, and their programs run at the same time, each in its own network.
func TestTwoTenants(t *testing.T) {
	harness.Need(t, "ibv_rc_pingpong", "rping", "ib_send_bw", "ib_write_lat", "ibv_devinfo")
	d := start(t, example(t))
	t.Run("pingpong", func(t *testing.T) {
		d.both(t, func(of string) *harness.Conversation {
			tcp := harness.FreePort(t)
			server, client := pingpong(tcp)
			return harness.Converse(t, tcp, d.at(of+"/web"), server, d.at(of+"/db"), client)
		})
	})
	t.Run("perftest", func(t *testing.T) {
		d.both(t, func(of string) *harness.Conversation {
			tcp := harness.FreePort(t)
			server := []string{"ib_write_lat", "-x", "0", "-n", "500", "-p", strconv.Itoa(tcp)}
			return harness.Converse(t, tcp, d.at(of+"/web"), server, d.at(of+"/db"), append(server[:len(server):len(server)], "127.0.0.1"))
		})
	})
	t.Run("rping", func(t *testing.T) {
		d.both(t, func(of string) *harness.Conversation {
			server := d.at(of+"/web").launch(t, "rping", "-s", "-a", "10.1.0.1", "-V", "-C", "100")
			d.listening(t, of+"/web")
			return &harness.Conversation{Server: server, Client: d.at(of+"/db").launch(t, "rping", "-c", "-a", "10.1.0.1", "-V", "-C", "100")}
		})
	})
	t.Run("nothing of others", func(t *testing.T) { nothingOfOthers(t, d) })
	t.Run("unreachable", func(t *testing.T) { unreachable(t, d) })
}

// both runs something of red and of blue at the same time.
func (d *daemon) both(t *testing.T, begin func(of string) *harness.Conversation) {
	t.Helper()
	var running []*harness.Conversation
	for _, of := range []string{"red", "blue"} {
		running = append(running, begin(of))
	}
	for _, c := range running {
		c.OK(t, minute)
	}
}

// listening waits until a program listens through rdma_cm at a NIC.
func (d *daemon) listening(t testing.TB, name string) {
	t.Helper()
	ok := harness.Poll(minute, func() bool {
		for _, c := range d.at(name).status(t).Connections {
			if strings.EqualFold(c.State, "listening") || strings.EqualFold(c.State, "listen") {
				return true
			}
		}
		return false
	})
	if !ok {
		t.Fatalf("nobody listens at %s: %+v", name, d.at(name).status(t).Connections)
	}
}

// nothingOfOthers: red/slow has done nothing, and sees nothing of the others.
func nothingOfOthers(t *testing.T, d *daemon) {
	harness.Need(t, "rdma")
	server := d.at("red/web").launch(t, "rping", "-s", "-a", "10.1.0.1")
	d.listening(t, "red/web")
	slow := d.at("red/slow")
	out := slow.run(t, "ibv_devinfo", "-v")
	gids := regexp.MustCompile(`GID\[\s*\d+\]:.*`).FindAllString(out, -1)
	if n := strings.Count(out, "hca_id:"); n != 1 || len(gids) != 1 || !strings.Contains(gids[0], "10.1.0.3") {
		t.Errorf("red/slow sees %d devices with GIDs %q, want one with 10.1.0.3:\n%s", n, gids, out)
	}
	for _, what := range []string{"qp", "cm_id", "mr", "cq", "pd"} {
		if out := slow.run(t, "rdma", "resource", "show", what); strings.Contains(out, "rping") || strings.Contains(out, "lqpn") {
			t.Errorf("rdma resource show %s: %s", what, out)
		}
	}
	if out := slow.run(t, "rdma", "link"); strings.Count(out, "\n") != 1 {
		t.Errorf("rdma link shows more than one line:\n%s", out)
	}
	// This listener does not show what the daemon's own listener knows of others, not even by path.
	d.gone(t, "red/slow") // what has looked so far
	s := slow.status(t)
	if s.NIC != "red/slow" || len(s.Sessions)+len(s.Connections)+len(s.NICs) != 0 || s.Control != "" {
		t.Errorf("status at red/slow: NIC %q, %d sessions, %d connections, NICs %v, control %q, want its own name and nothing else",
			s.NIC, len(s.Sessions), len(s.Connections), s.NICs, s.Control)
	}
	for name, value := range s.Counters {
		if value != 0 {
			t.Errorf("red/slow, which has done nothing, has a counter %s of %d", name, value)
		}
	}
	tree := d.provisioner.Socket(key("red/slow")) + ".d/sys"
	for _, path := range []string{"counters/port_xmit_data", "hw_counters/sent_pkts", "hw_counters/rdma_sends"} {
		if text, err := os.ReadFile(filepath.Join(tree, "class/infiniband/rxe0/ports/1", path)); err != nil || string(text) != "0\n" {
			t.Errorf("%s of red/slow: %q, %v, want 0", path, text, err)
		}
	}
	// The listener of red/web shows them.
	text, err := os.ReadFile(filepath.Join(d.provisioner.Socket(key("red/web"))+".d/sys", "class/infiniband/rxe0/ports/1/counters/port_xmit_data"))
	if n, _ := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n == 0 {
		t.Errorf("red/web has sent %q (%v), want what it has", text, err)
	}
	server.End()
}

// unreachable: an address outside the network fails at once.
func unreachable(t *testing.T, d *daemon) {
	// red/slow has the address 10.1.0.3; no NIC of blue's network has it.
	for name, argv := range map[string][]string{
		"an address of another network": {"rping", "-c", "-a", "10.1.0.3", "-C", "1"},
		"an address outside":            {"rping", "-c", "-a", "192.0.2.1", "-C", "1"},
	} {
		p := d.at("blue/web").launch(t, argv...)
		if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), "unreachable") {
			t.Errorf("%s: exit %d, want that the network is unreachable:\n%s", name, code, p.Output())
		}
	}
	// An address that both networks have means one's own network: red listens, blue does not.
	server := d.at("red/web").launch(t, "rping", "-s", "-a", "10.1.0.1")
	d.listening(t, "red/web")
	p := d.at("blue/db").launch(t, "rping", "-c", "-a", "10.1.0.1", "-C", "1")
	if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), "REJECTED") {
		t.Errorf("blue calls red's listener: exit %d, want that it is refused by its own:\n%s", code, p.Output())
	}
	server.End()
}

// A program of blue knows all numbers of one of red's, and reaches nothing.
func TestKeysOfAnotherNetwork(t *testing.T) {
	d := start(t, example(t))
	program := harness.Compile(t, "cross")
	cmd := d.at("red/web").command(program, "target")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	target := harness.Spawn(t, cmd)
	target.Printed(t, "target ", minute)
	f := strings.Fields(regexp.MustCompile(`target .*`).FindString(target.Output()))
	if len(f) != 5 {
		t.Fatalf("the target printed %q", f)
	}
	attack := append([]string{program, "attack"}, f[1:]...)
	d.at("blue/db").run(t, append(attack, "::ffff:10.1.0.1")...)
	in.Close()
	if out := target.OK(t, minute); !strings.Contains(out, "untouched") {
		t.Errorf("the target printed:\n%s", out)
	}
}

// The errors of `vrdma run --nic`.
func TestRunNIC(t *testing.T) {
	d := start(t, example(t))
	other := start(t, "")
	for _, test := range []struct {
		name string
		d    *daemon
		nic  string
		want string
	}{
		{"no such NIC", d, "red/wbe", "there is no NIC red/wbe: for us there are blue/db, blue/web, red/db, red/slow, red/web"},
		{"none at all", other, "red/web", "there is no NIC red/web, nor any other"},
		{"no name", d, "web", "want TENANT/NAME"},
		{"a path", d, "../red", "want TENANT/NAME"},
	} {
		p := test.d.at(test.nic).launch(t, "ibv_devinfo")
		if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), test.want) {
			t.Errorf("%s: exit %d, want %q:\n%s", test.name, code, test.want, p.Output())
		}
	}
	run := exec.Command(harness.Binary(), "run", "--socket", "/tmp/nothing/vrdma.sock", "--nic", "red/web", "--", "true")
	if out, err := run.CombinedOutput(); err == nil || !strings.Contains(string(out), "no daemon serves /tmp/nothing") {
		t.Errorf("without a daemon: %v\n%s", err, out)
	}
	// A program without --nic, at a daemon without a default NIC.
	p := harness.Spawn(t, exec.Command(harness.Binary(), "run", "--socket", d.place.Socket, "--", "ibv_devinfo"))
	if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), "has no default NIC") || !strings.Contains(p.Output(), "red/web") {
		t.Errorf("without a NIC: exit %d, want that there is no default NIC:\n%s", code, p.Output())
	}
}
