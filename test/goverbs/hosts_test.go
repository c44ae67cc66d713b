package goverbs

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

// twoHosts are two network namespaces with a daemon each.
func twoHosts(t *testing.T) (a, b *harness.Daemon, ipA, ipB string) {
	t.Helper()
	harness.Need(t, "nsenter", "ip")
	one, two := cable.NewNamespace(t), cable.NewNamespace(t)
	cable.Veth(t, one, two, "eth0", 1500)
	ipA, ipB = "10.98.0.1", "10.98.0.2"
	one.Address(t, "eth0", ipA+"/24")
	two.Address(t, "eth0", ipB+"/24")
	a = harness.Start(t, harness.Options{Addr: ipA, Network: one.Path()})
	b = harness.Start(t, harness.Options{Addr: ipB, Network: two.Path()})
	return a, b, ipA, ipB
}

// TestTwoHosts runs Go and C programs at both ends of a wire.
func TestTwoHosts(t *testing.T) {
	a, b, ipA, ipB := twoHosts(t)
	t.Run("Go client, C server", func(t *testing.T) { clientOfRping(t, b, ipB, a, nothing) })
	t.Run("C client, Go server", func(t *testing.T) { serverOfRping(t, a, ipA, b) })
	t.Run("Go stream server, C client", func(t *testing.T) { curl(t, a, ipA, b) })
	t.Run("Go and Go", func(t *testing.T) { streamBetween(t, provider(t, a).Listen, ipA, provider(t, b).DialContext) })
	t.Run("queue pairs by hand", func(t *testing.T) { byHand(t, a, b) })
}

// streamBetween sends bytes there and back.
func streamBetween(t *testing.T, listen func(string) (net.Listener, error), ip string, dial dialer) {
	l, err := listen(ip + ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(c, c)
			c.Close()
		}
		served <- err
	}()
	c, err := dial(testContext(t), "rdma", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := make([]byte, 4<<20)
	rand.Read(want)
	go func() {
		c.Write(want)
		c.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes came back of %d: %v", len(got), len(want), err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// byHand connects two queue pairs without rdma_cm. The hosts know only each other's address.
func byHand(t *testing.T, a, b *harness.Daemon) {
	var side [2]*program
	var qp [2]*verbs.QP
	var at [2]verbs.Address
	for i, d := range []*harness.Daemon{a, b} {
		p := newProgram(t, d.Socket)
		var errs [2]error
		qp[i], errs[0] = p.pd.CreateQP(verbs.QPConfig{SendCQ: p.cq})
		at[i], errs[1] = qp[i].Address()
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		side[i] = p
	}
	for i := range qp {
		if err := qp[i].Connect(at[1-i]); err != nil {
			t.Fatal(err)
		}
	}
	copy(side[0].mr.Bytes(), "from host to host")
	wr := verbs.SendWR{Op: verbs.Write, Flags: verbs.Signaled, SGL: []verbs.SGE{side[0].mr.Slice(0, 17)}, RemoteAddr: side[1].mr.Addr(64), RKey: side[1].mr.RKey()}
	if err := qp[0].PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	var wc [1]verbs.WC
	if _, err := side[0].cq.Next(testContext(t), wc[:]); err != nil || wc[0].Err() != nil {
		t.Fatal(err, wc[0].Err())
	}
	if got := string(side[1].mr.Bytes()[64 : 64+17]); got != "from host to host" {
		t.Errorf("wrote %q", got)
	}
}

// pingProgram builds examples/ping as a static binary.
func pingProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ping")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "vrdma.dev/vrdma/examples/ping")
	build.Dir = harness.Root()
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// launch starts a Go program with the daemon's device.
func launch(t *testing.T, d *harness.Daemon, argv ...string) *harness.Process {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "VRDMA_SOCKET="+d.Socket)
	return harness.Spawn(t, cmd)
}

// TestKilledPeer: the survivor notices the death of its peer, on one host and between two, as client and as server.
func TestKilledPeer(t *testing.T) {
	ping := pingProgram(t)
	a, b, ipA, ipB := twoHosts(t)
	one := harness.Device(t)
	for _, x := range []struct {
		name        string
		there, here *harness.Daemon
		at, from    string
	}{{"one host", one, one, "127.0.0.1", "127.0.0.1"}, {"two hosts", b, a, ipB, ipA}} {
		t.Run(x.name+", the server", func(t *testing.T) {
			port := harness.FreePort(t)
			server := launch(t, x.there, ping, "-s", "-l", fmt.Sprintf("%s:%d", x.at, port))
			x.there.AwaitManaged(t, server, port)
			p := newProgram(t, x.here.Socket)
			var err error
			if p.c, err = p.m.Dial(testContext(t), fmt.Sprintf("%s:%d", x.at, port), p.config()); err != nil {
				t.Fatal(err)
			}
			p.bereave(t, server)
		})
		t.Run(x.name+", the client", func(t *testing.T) {
			p := newProgram(t, x.here.Socket)
			l, err := p.m.Listen(x.from+":0", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			client := launch(t, x.there, ping, "-n", "100000000", "-size", "16", l.Addr().String())
			r, err := l.Accept(testContext(t))
			if err == nil {
				p.c, err = r.Accept(testContext(t), p.config())
			}
			if err != nil {
				t.Fatal(err)
			}
			p.await(t, 1) // its first ping
			if err := p.expect(p.c.QP()); err != nil {
				t.Fatal(err)
			}
			p.bereave(t, client)
		})
	}
}

// bereave kills the peer. The connection must end, and its pending requests must be flushed.
func (p *program) bereave(t *testing.T, peer *harness.Process) {
	t.Helper()
	received = false
	peer.Signal(syscall.SIGKILL)
	select {
	case <-p.c.Done():
	case <-testContext(t).Done():
		t.Fatal("the connection did not end")
	}
	var wc [1]verbs.WC
	if _, err := p.cq.Next(testContext(t), wc[:]); err != nil || wc[0].Status != verbs.Flushed {
		t.Errorf("the receive: %v, %v", wc[0].Status, err)
	}
	if err := p.c.Close(); err != nil {
		t.Error(err)
	}
}

// TestKilledDaemon: all programs notice that the daemon was killed.
func TestKilledDaemon(t *testing.T) {
	d := harness.Start(t, harness.Options{})
	p := newProgram(t, d.Socket)
	l, err := p.m.Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	waits, accepts := make(chan error, 1), make(chan error, 1)
	go func() { waits <- p.cq.Wait(longContext(t)) }()
	go func() { _, err := l.Accept(longContext(t)); accepts <- err }()
	d.Process.Signal(syscall.SIGKILL)
	if err := <-waits; !errors.Is(err, verbs.ErrGone) {
		t.Errorf("waited: %v", err)
	}
	if err := <-accepts; err == nil {
		t.Error("accepted a connection of nobody")
	}
	if _, err := p.m.Dial(testContext(t), "127.0.0.1:1", cm.Config{PD: p.pd, QP: verbs.QPConfig{SendCQ: p.cq}}); !errors.Is(err, verbs.ErrGone) && !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("dialed: %v", err)
	}
}

// TestEmptyRoot runs a static Go program in a root with only this program and the NIC's directory.
func TestEmptyRoot(t *testing.T) {
	d := harness.Device(t)
	root := filepath.Dir(d.Socket) // what a container mounts; the root has nothing else
	program, err := os.ReadFile(pingProgram(t))
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "ping"), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	enclosed := func(args ...string) *harness.Process {
		cmd := exec.Command("/ping", args...)
		cmd.Env = []string{"VRDMA_SOCKET=/" + filepath.Base(d.Socket)}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		cmd.Dir = "/"
		return harness.Spawn(t, cmd)
	}
	port := harness.FreePort(t)
	at := fmt.Sprintf("127.0.0.1:%d", port)
	server := enclosed("-s", "-l", at)
	d.AwaitManaged(t, server, port)
	d.Carried(t, harness.Traffic{Bytes: 2 * 500 * 64}, func() { enclosed("-n", "500", at).OK(t, minute) })
	server.OK(t, minute)
}

// A dialer connects, as stream.Provider.DialContext does.
type dialer = func(context.Context, string, string) (net.Conn, error)
