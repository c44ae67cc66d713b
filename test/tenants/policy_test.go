package tenants

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/test/harness"
)

// denials collects the refusals of rules.
func (d *daemon) denials(t testing.TB, names ...string) (list *[]string) {
	t.Helper()
	list = new([]string)
	d.engine.Do(func() {
		for _, name := range names {
			d.provisioner.NIC(key(name)).Device.Denied = func(of nic.Denial) {
				d.note(list, fmt.Sprintf("%s: %v: %s %v: %s", name, of.What, of.Program, of.Peer.Addr(), of.Why))
			}
		}
	})
	return list
}

// fails waits until a program fails, before anything could time out, with text in its output.
func fails(t *testing.T, p *harness.Process, text string) {
	t.Helper()
	begin := time.Now()
	if code := p.Wait(t, minute); code == 0 {
		t.Errorf("%s: succeeded\n%s", p.Name, p.Output())
	}
	if !strings.Contains(p.Output(), text) {
		t.Errorf("%s: want %q in its output, after %v:\n%s", p.Name, text, time.Since(begin), p.Output())
	}
}

// listens waits until a program listens on a port of rdma_cm's.
func (p port) listens(t testing.TB, program *harness.Process, tcp int) {
	t.Helper()
	suffix := fmt.Sprintf(":%d", tcp)
	if !harness.Poll(minute, func() bool {
		for _, c := range p.status(t).Connections {
			if c.State == "LISTEN" && strings.HasSuffix(c.Local, suffix) {
				return true
			}
		}
		return program.Ended(0)
	}) || program.Ended(0) {
		t.Fatalf("%s does not listen: %s\n%s", program.Name, program.Fate(), program.Output())
	}
}

// TestPolicy: programs under the rule of the example: red/slow does not reach red/db in any way, and all others do.
func TestPolicy(t *testing.T) {
	harness.Need(t, "ibv_rc_pingpong", "ibv_ud_pingpong", "rping")
	d := start(t, example(t))
	denied := d.denials(t, "red/slow", "red/db")
	tcp := harness.FreePort(t)
	server := d.at("red/db").launch(t, "rping", "-s", "-C", "3", "-v", "-p", strconv.Itoa(tcp))
	d.at("red/db").listens(t, server, tcp)
	ping := func(from, to string) *harness.Process {
		return d.at(from).launch(t, "rping", "-c", "-C", "3", "-a", to, "-p", strconv.Itoa(tcp))
	}
	fails(t, ping("red/slow", "10.1.0.2"), "RDMA_CM_EVENT_REJECTED")
	fails(t, ping("red/slow", "10.1.0.77"), "Network is unreachable")
	if server.Ended(0) || strings.Contains(server.Output(), "ping") {
		t.Errorf("the listener heard of it: %s\n%s", server.Fate(), server.Output())
	}
	ping("red/web", "10.1.0.2").OK(t, minute)
	server.OK(t, minute)

	for _, tool := range []struct{ name, text string }{{"ibv_rc_pingpong", "Failed to modify QP to RTR"}, {"ibv_ud_pingpong", "Failed to create AH"}} {
		tcp := harness.FreePort(t)
		argv := []string{tool.name, "-g", "0", "-n", "50", "-p", strconv.Itoa(tcp)}
		converse := func(server, client string) *harness.Conversation {
			return harness.Converse(t, tcp, d.at(server), argv, d.at(client), append(argv[:len(argv):len(argv)], "127.0.0.1"))
		}
		for _, pair := range [][2]string{{"red/db", "red/slow"}, {"red/slow", "red/db"}} {
			c := converse(pair[0], pair[1])
			fails(t, c.Server.(*harness.Process), tool.text) // the server gets the client's address first
			fails(t, c.Client.(*harness.Process), "Couldn't read/write remote address")
		}
		converse("red/db", "red/web").OK(t, minute)
	}
	for _, want := range []string{
		"red/slow: connect: rping 10.1.0.2: red/db, in: policy red/no-batch-to-store, deny rule 1", "red/slow: rtr: ibv_rc_pingpong 10.1.0.2: ",
		"red/db: rtr: ibv_rc_pingpong 10.1.0.3: ", "red/slow: ah: ibv_ud_pingpong 10.1.0.2: ", "red/db: ah: ibv_ud_pingpong 10.1.0.3: ",
	} {
		if got := d.noted(denied); !strings.Contains(got, want) {
			t.Errorf("want a denial %q in:\n%s", want, got)
		}
	}
}

const noRead = `
apiVersion: vrdma.io/v1
kind: Policy
metadata: {name: no-read, tenant: red}
spec:
  nics: {network: train, names: [db]}
  allow:
  - {direction: in, peer: {nic: web}, ops: [send, write]}
  - {direction: in, service: {space: tcp, ports: ["1024-65535"]}, ops: [read]}
`

// TestPolicyOperations: a program that connects without rdma_cm cannot read the memory of red/db. A program that
// connects to an allowed port can.
func TestPolicyOperations(t *testing.T) {
	harness.Need(t, "ib_write_bw", "ib_read_bw")
	d := start(t, example(t)+"---"+noRead)
	run := func(from string, flags ...string) *harness.Conversation {
		tcp := harness.FreePort(t)
		for i, f := range flags {
			if f == "PORT" {
				flags[i] = strconv.Itoa(tcp)
			}
		}
		argv := append(flags, "-x", "0", "-n", "100", "-s", "4096", "-F")
		return harness.Converse(t, tcp, d.at("red/db"), argv, d.at(from), append(argv[:len(argv):len(argv)], "127.0.0.1"))
	}
	run("red/web", "ib_write_bw", "-p", "PORT").OK(t, minute)
	c := run("red/web", "ib_read_bw", "-p", "PORT")
	fails(t, c.Client.(*harness.Process), "status 10")
	c.Server.End()

	tcp := harness.FreePort(t)
	argv := []string{"ib_read_bw", "-R", "-p", strconv.Itoa(tcp), "-n", "100", "-s", "4096", "-F"}
	server := d.at("red/db").launch(t, argv...)
	d.at("red/db").listens(t, server, tcp)
	d.at("red/web").launch(t, append(argv, "10.1.0.2")...).OK(t, minute)
	server.OK(t, minute)
}

const namedOnly = `
apiVersion: vrdma.io/v1
kind: Policy
metadata: {name: named-only, tenant: red}
spec:
  nics: {network: train, names: [db]}
  allow:
  - {service: {space: udp}, types: [ud]}
---
apiVersion: vrdma.io/v1
kind: Policy
metadata: {name: no-groups, tenant: red}
spec:
  nics: {names: [slow]}
  deny:
  - {direction: in, peer: {prefix: 239.0.0.0/8}}
`

// TestPolicyDatagrams: datagrams to a service that rdma_cm resolved pass where those without rdma_cm do not. A denied
// group cannot be joined.
func TestPolicyDatagrams(t *testing.T) {
	harness.Need(t, "udaddy", "mckey", "ibv_ud_pingpong")
	d := start(t, example(t)+"---"+namedOnly)
	argv := []string{"udaddy", "-c", "2", "-C", "5", "-S", "100"}
	server := d.at("red/db").launch(t, argv...)
	d.at("red/db").listens(t, server, 7174) // its own
	d.at("red/web").launch(t, append(argv, "-s", "10.1.0.2")...).OK(t, minute)
	server.OK(t, minute)

	tcp := harness.FreePort(t)
	argv = []string{"ibv_ud_pingpong", "-g", "0", "-n", "50", "-p", strconv.Itoa(tcp)}
	c := harness.Converse(t, tcp, d.at("red/db"), argv, d.at("red/web"), append(argv, "127.0.0.1"))
	fails(t, c.Server.(*harness.Process), "Failed to create AH")
	c.Client.End()

	member := d.at("red/slow").launch(t, "mckey", "-m", "239.1.1.1", "-b", "10.1.0.3") // its status is 0 whatever happens
	member.Printed(t, "RDMA_CM_EVENT_MULTICAST_ERROR, error: -13", minute)
	member.Wait(t, minute)
}

const shut = `
apiVersion: vrdma.io/v1
kind: Policy
metadata: {name: shut, tenant: red}
spec:
  nics: {network: train, names: [web]}
  deny:
  - {direction: out, peer: {nic: db}}
`

// TestPolicyRevoked: a new rule ends existing connections, with and without rdma_cm, at both ends and soon; an
// unrelated connection goes on.
func TestPolicyRevoked(t *testing.T) {
	harness.Need(t, "ib_write_bw", "rping")
	d := start(t, example(t))
	denied := d.denials(t, "red/web", "red/db")
	busy := func(from, to string) *harness.Conversation {
		tcp := harness.FreePort(t)
		argv := []string{"ib_write_bw", "-x", "0", "-p", strconv.Itoa(tcp), "-s", "65536", "-D", "600", "-F"}
		return harness.Converse(t, tcp, d.at(to), argv, d.at(from), append(argv[:len(argv):len(argv)], "127.0.0.1"))
	}
	byHand, other := busy("red/web", "red/db"), busy("blue/web", "blue/db")
	tcp := harness.FreePort(t)
	server := d.at("red/db").launch(t, "rping", "-s", "-p", strconv.Itoa(tcp))
	d.at("red/db").listens(t, server, tcp)
	client := d.at("red/web").launch(t, "rping", "-c", "-a", "10.1.0.2", "-p", strconv.Itoa(tcp))
	sent := func(name string) (n uint64) {
		d.engine.Do(func() { n = d.provisioner.NIC(key(name)).Counters().SentBytes })
		return n
	}
	connected := func() (n int) {
		for _, c := range d.at("red/web").status(t).Connections {
			if c.State == "ESTABLISHED" {
				n++
			}
		}
		return n
	}
	if !harness.Poll(minute, func() bool { return sent("red/web") > 1<<20 && sent("blue/web") > 1<<20 && connected() == 1 }) {
		t.Fatalf("nothing moves\n%v\n%s", byHand, client.Output())
	}
	begin := time.Now()
	d.apply(t, shut)
	took := time.Since(begin)
	moved := sent("red/web")
	blue := sent("blue/web")
	t.Logf("everything has ended %v after the rule was there", took)
	if c := byHand.Client.(*harness.Process); c.Wait(t, minute) == 0 {
		t.Errorf("ib_write_bw succeeded\n%s", c.Output())
	}
	client.Wait(t, minute)
	if !strings.Contains(client.Output(), "DISCONNECT") && client.Code() == 0 {
		t.Errorf("rping's client: %s\n%s", client.Fate(), client.Output())
	}
	if !harness.Poll(minute, func() bool { return server.Ended(0) || strings.Contains(server.Output(), "DISCONNECT") }) {
		t.Errorf("rping's server: %s\n%s", server.Fate(), server.Output())
	}
	if now := sent("red/web"); now != moved {
		t.Errorf("%d bytes were sent after the rule was there", now-moved)
	}
	if !harness.Poll(minute, func() bool { return sent("blue/web") > blue+1<<20 }) {
		t.Errorf("blue's connection ended, too:\n%v", other)
	}
	for _, want := range []string{"red/web: revoked: ib_write_bw 10.1.0.2: red/web, out: policy red/shut, deny rule 1", "red/db: revoked: rping"} {
		if got := d.noted(denied); !strings.Contains(got, want) {
			t.Errorf("want a denial %q in:\n%s", want, got)
		}
	}
	for _, p := range []harness.Program{other.Client, other.Server, byHand.Server, server} {
		p.End()
	}
}
