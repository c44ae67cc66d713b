package goverbs

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/verbs"
)

const (
	pings    = 20
	pingSize = 64
)

func TestClientOfRping(t *testing.T) {
	d := harness.Device(t)
	clientOfRping(t, d, "127.0.0.1", d, nothing)
}

// A Go program continues when the daemon is replaced between its messages.
func TestUpgrade(t *testing.T) {
	d := harness.StartUpgradable(t, harness.Options{})
	clientOfRping(t, d, "127.0.0.1", d, func(ping int) {
		if ping%(pings/2) == 1 {
			d.Upgrade(t)
		}
	})
}

func nothing(int) {}

// clientOfRping is rping's client: the server, perhaps on another host, reads our buffer and writes it back.
// It calls middle in each ping, while the server waits for the second message.
func clientOfRping(t *testing.T, there *harness.Daemon, ip string, here *harness.Daemon, middle func(ping int)) {
	harness.Need(t, "rping")
	port := harness.FreePort(t)
	server := there.Launch(t, "rping", "-s", "-v", "-V", "-a", ip, "-p", strconv.Itoa(port), "-S", strconv.Itoa(pingSize))
	there.AwaitManaged(t, server, port)
	p := newProgram(t, here.Socket)
	received = false
	var err error
	if p.c, err = p.m.Dial(testContext(t), fmt.Sprintf("%s:%d", ip, port), p.config()); err != nil {
		t.Fatal(err)
	}
	data := p.mr.Bytes()[dataAt : dataAt+pingSize]
	for i := range pings {
		ping(data, i)
		want := bytes.Clone(data)
		p.tell(t, pingSize) // the server reads it
		p.heard(t)
		clear(data)
		middle(i)
		p.tell(t, pingSize) // the server writes it
		p.heard(t)
		if !bytes.Equal(data, want) {
			t.Fatalf("ping %d came back as %q, want %q", i, data, want)
		}
	}
	if err := p.c.Close(); err != nil {
		t.Error(err)
	}
	if !server.Ended(minute) {
		t.Fatalf("rping: %s\n%s", server.Fate(), server.Output())
	}
}

// ping returns rping's text, which the peer checks.
func ping(b []byte, i int) {
	n := copy(b, fmt.Sprintf("rdma-ping-%d: ", i))
	for c := 65 + i%58; n < len(b)-1; n++ {
		b[n] = byte(c)
		if c++; c > 122 {
			c = 65
		}
	}
	b[len(b)-1] = 0
}

func TestServerOfRping(t *testing.T) {
	d := harness.Device(t)
	serverOfRping(t, d, "127.0.0.1", d)
}

// serverOfRping is rping's server, for a C client that checks the data.
func serverOfRping(t *testing.T, here *harness.Daemon, ip string, there *harness.Daemon) {
	harness.Need(t, "rping")
	p := newProgram(t, here.Socket)
	received = false
	l, err := p.m.Listen(ip+":0", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := there.Launch(t, "rping", "-c", "-v", "-V", "-a", ip, "-p", strconv.Itoa(int(l.Addr().Port())), "-C", strconv.Itoa(pings), "-S", strconv.Itoa(pingSize))
	r, err := l.Accept(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if p.c, err = r.Accept(testContext(t), p.config()); err != nil {
		t.Fatal(err)
	}
	for range pings {
		addr, key, n := p.heard(t)
		if n != pingSize {
			t.Fatalf("a ping of %d bytes", n)
		}
		p.do(t, verbs.SendWR{Op: verbs.Read, SGL: []verbs.SGE{p.mr.Slice(dataAt, int(n))}, RemoteAddr: addr, RKey: key})
		p.tell(t, pingSize) // go on
		addr, key, n = p.heard(t)
		p.do(t, verbs.SendWR{Op: verbs.Write, SGL: []verbs.SGE{p.mr.Slice(dataAt, int(n))}, RemoteAddr: addr, RKey: key})
		p.tell(t, pingSize)
	}
	client.OK(t, minute)
	<-p.c.Done()
	if err := p.c.Close(); err != nil {
		t.Error(err)
	}
}
