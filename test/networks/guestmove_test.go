package networks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// le is the order of the bytes of a number.
var le = binary.LittleEndian

// batch is how many numbers are sent at a time.
const batch = 2048

// numbersFrom appends n numbers.
func numbersFrom(b []byte, first uint64, n int) []byte {
	for i := range uint64(n) {
		b = le.AppendUint64(b, first+i)
	}
	return b
}

// A peer is a container that talks with a virtual machine: a namespace with the interface of a NIC. The connections are those of
// this process.
type peer struct {
	space *cable.Namespace
	to    string
}

// newPeer makes a container with a NIC on a host.
func newPeer(t *testing.T, h *host, nic, to string) *peer {
	t.Helper()
	p := &peer{cable.NewNamespace(t), to}
	call := func(command string) {
		t.Helper()
		cmd := exec.Command(h.Executable(), "cni")
		cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID=peer", "CNI_IFNAME=eth0", "CNI_NETNS="+p.space.Path())
		cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "red", "type": "vrdma-cni", "nic": %q, "socket": %q}`, strings.ReplaceAll(nic, "/", "."), h.Socket))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("vrdma cni %s: %v\n%s", command, err, out)
		}
	}
	call("ADD")
	t.Cleanup(func() { call("DEL") })
	return p
}

// dial connects to the program numbers in the machine.
func (p *peer) dial(t *testing.T, mode byte) *net.TCPConn {
	t.Helper()
	var c net.Conn
	var err error
	p.space.Do(t, func() { c, err = net.DialTimeout("tcp", p.to, minute) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := c.Write([]byte{mode}); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// A flow is a connection with numbers in both directions.
type flow struct {
	conn *net.TCPConn
	sent uint64
	got  atomic.Uint64
	gap  atomic.Int64 // the longest time in which nothing arrived, in ns
	stop chan struct{}
	all  sync.WaitGroup
	errs [2]error
}

func (p *peer) flow(t *testing.T) *flow {
	t.Helper()
	f := &flow{conn: p.dial(t, 'f'), stop: make(chan struct{})}
	f.all.Go(func() { f.errs[0] = f.speak() })
	f.all.Go(func() { f.errs[1] = f.listen() })
	return f
}

// speak sends numbers until the flow ends.
func (f *flow) speak() error {
	defer f.conn.CloseWrite()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var b []byte
	for {
		select {
		case <-f.stop:
			return nil
		case <-tick.C:
			b = numbersFrom(b[:0], f.sent, batch)
			if _, err := f.conn.Write(b); err != nil {
				return fmt.Errorf("after %d numbers: %w", f.sent, err)
			}
			f.sent += batch
		}
	}
}

// listen checks numbers until the machine says how many it got.
func (f *flow) listen() error {
	b := make([]byte, 8*batch)
	last := time.Now()
	for next := uint64(0); ; {
		if _, err := io.ReadFull(f.conn, b[:8]); err != nil {
			return fmt.Errorf("after %d numbers: %w", next, err)
		}
		v := le.Uint64(b)
		if v == ^uint64(0) {
			break
		}
		if _, err := io.ReadFull(f.conn, b[8:]); err != nil {
			return fmt.Errorf("after %d numbers: %w", next, err)
		}
		for i := range uint64(batch) {
			if v := le.Uint64(b[8*i:]); v != next+i {
				return fmt.Errorf("number %d is %#x", next+i, v)
			}
		}
		next += batch
		f.got.Store(next)
		now := time.Now()
		f.gap.Store(max(f.gap.Load(), int64(now.Sub(last))))
		last = now
	}
	return f.answered(f.conn, func() uint64 { return f.sent })
}

// answered checks how many numbers the machine got.
func (f *flow) answered(c io.Reader, sent func() uint64) error {
	var b [8]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return err
	}
	if got := le.Uint64(b[:]); got != sent() {
		return fmt.Errorf("the machine got %d of %d numbers", got, sent())
	}
	return nil
}

// goesOn waits until more has arrived, and returns the longest gap since the last call.
func (f *flow) goesOn(t *testing.T) time.Duration {
	t.Helper()
	before := f.got.Load()
	if !harness.Poll(minute, func() bool { return f.got.Load() > before+4*batch }) {
		t.Fatalf("the connection stands still after %d numbers: %v", before, errors.Join(f.errs[:]...))
	}
	return time.Duration(f.gap.Swap(0))
}

// end ends the flow and checks that nothing is missing.
func (f *flow) end(t *testing.T) {
	t.Helper()
	close(f.stop)
	f.conn.SetDeadline(time.Now().Add(3 * minute))
	f.all.Wait()
	if err := errors.Join(f.errs[:]...); err != nil {
		t.Error(err)
	}
	if f.got.Load() == 0 || f.sent == 0 {
		t.Errorf("%d numbers were sent, and %d have arrived", f.sent, f.got.Load())
	}
}

// hold sends as many numbers as the machine's kernel takes while its program reads nothing. read checks that they are there.
func (p *peer) hold(t *testing.T) (read func()) {
	t.Helper()
	c := p.dial(t, 'h')
	if err := c.SetWriteBuffer(32 << 10); err != nil { // nearly all that is written is in the machine then
		t.Fatal(err)
	}
	var b []byte
	for i := range uint64(128) { // more than the buffers of both kernels have space for
		b = numbersFrom(b, i*batch, batch)
	}
	c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	n, err := c.Write(b)
	if err == nil || n < 128<<10 {
		t.Fatalf("%d bytes were written: %v", n, err)
	}
	return func() {
		t.Helper()
		c.SetDeadline(time.Now().Add(3 * minute))
		more := (8 - n%8) % 8
		if _, err := c.Write(b[n : n+more]); err != nil {
			t.Error(err)
		}
		c.CloseWrite()
		var head [8]byte
		_, err := io.ReadFull(c, head[:])
		if err == nil {
			err = new(flow).answered(c, func() uint64 { return uint64(n+more) / 8 })
		}
		if err != nil {
			t.Errorf("what the machine had not read when it moved: %v", err)
		}
		c.Close()
	}
}

// A traveller is a virtual machine that moves between hosts.
type traveller struct {
	*guest.Guest
	nic string
	at  *host
}

// config is its QEMU's on a host.
func (v *traveller) config(t *testing.T, h *host) guest.Config {
	t.Helper()
	return guest.Config{Card: strings.Fields(h.must(t, "guest", "args", "--tcg", "-m", "256M", v.nic))}
}

// copy starts a QEMU on a host that waits for the machine.
func (v *traveller) copy(t *testing.T, h *host) *guest.Copy {
	t.Helper()
	return v.Copy(t, v.config(t, h))
}

// is waits until the hosts know where the NIC is.
func (v *traveller) is(t *testing.T, w *lab, at *host) {
	t.Helper()
	for _, h := range w.hosts {
		h.says(t, `"host": "`+at.name+`"`, "get", "nic", v.nic, "-o", "json")
	}
	v.at = at
}

// TestGuestMoves: QEMU migrates a machine whose card is a NIC. TCP connections of the card continue, and every number of their streams is
// checked. A migration that fails leaves the machine where it was.
func TestGuestMoves(t *testing.T) {
	w := newLab(t)
	w.a.declare(t, twoTenants()+object("NIC", "name: roams, tenant: red", "network: train, address: 10.1.0.9"))
	w.a.ready(t, "red/roams")
	w.b.ready(t, "red/db", "red/roams")
	v := &traveller{nic: "red/roams"}
	v.Guest = guest.Start(t, v.config(t, w.a))
	program := harness.CompileFile(t, filepath.Join("testdata", "numbers.c"), "gcc")
	p := newPeer(t, w.b, "red/db", "10.1.0.9:7000")
	v.AwaitStart(t)
	v.is(t, w, w.a)
	v.Install(t, program)
	v.Await(t, v.Launch(t, program, "7000"), 7000)
	f := p.flow(t)
	f.goesOn(t)

	// moves migrates the machine and checks what arrived meanwhile. QEMU ends the migration after it has sent all memory once.
	moves := func(h *host) {
		c := v.copy(t, h)
		m := v.Monitor(t)
		busy := p.dial(t, 'd')
		m.SetLimits(t, 32<<20, 0)
		m.Do(t, "migrate", map[string]any{"uri": c.URI()})
		passes := func(n int) {
			t.Helper()
			if !harness.Poll(3*minute, func() bool {
				g := m.Migration(t)
				return g.RAM.Passes >= n || g.Status != "active" && g.Status != "setup"
			}) {
				t.Fatalf("the migration does not go on: %v", m.Migration(t))
			}
		}
		passes(2)
		var reads []func()
		for range 4 {
			reads = append(reads, p.hold(t))
		}
		passes(m.Migration(t).RAM.Passes + 1)
		f.goesOn(t)
		busy.Close()
		m.SetLimits(t, 1<<30, 300*time.Millisecond)
		g := m.Await(t, "completed")
		v.Became(t, c)
		v.is(t, w, h)
		gap := f.goesOn(t)
		t.Logf("to host %s: %v; the longest gap of the connection is %v", h.name, g, gap.Round(time.Millisecond))
		v.Run(t, 3*minute, "touch", "go")
		for _, read := range reads {
			read()
		}
		v.Run(t, 3*minute, "rm", "go")
	}
	// fails begins a migration and makes it fail. late: the rings have stopped, and the NIC has left the host.
	fails := func(late bool, status string, fail func(*guest.Monitor, *guest.Copy)) {
		c := v.copy(t, w.b)
		m := v.Monitor(t)
		bandwidth, begun := 1<<20, "active"
		if late {
			bandwidth, begun = 1<<30, "pre-switchover"
		}
		m.SetLimits(t, bandwidth, 300*time.Millisecond)
		m.SetCapability(t, "pause-before-switchover", late)
		m.Do(t, "migrate", map[string]any{"uri": c.URI()})
		m.Await(t, begun)
		if out := w.a.must(t, "describe", "nic", v.nic); strings.Contains(out, "virtual machine") == late {
			t.Errorf("the migration is %s, and NIC %s is\n%s", begun, v.nic, out)
		}
		if !late {
			f.goesOn(t)
		}
		fail(m, c)
		m.Await(t, status)
		m.Running(t)
		m.SetCapability(t, "pause-before-switchover", false)
		if !c.Ended() {
			c.Kill()
		}
		v.is(t, w, w.a)
		t.Logf("%s, from %s: the longest gap of the connection is %v", status, begun, f.goesOn(t).Round(time.Millisecond))
	}
	for _, late := range []bool{false, true} {
		fails(late, "cancelled", func(m *guest.Monitor, _ *guest.Copy) { m.Do(t, "migrate_cancel", nil) })
		fails(late, "failed", func(m *guest.Monitor, c *guest.Copy) {
			c.Kill()
			if late {
				m.Do(t, "migrate-continue", map[string]any{"state": "pre-switchover"})
			}
		})
	}
	for range harness.Pick(1, 5) {
		moves(w.b)
		moves(w.a)
	}
	f.end(t)
}
