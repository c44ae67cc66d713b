package guest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/instrument/rxeguest"
	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/guest/talk"
	"vrdma.dev/vrdma/test/harness"
)

// bootLimit is long enough for a busy machine.
const bootLimit = 5 * time.Minute

// Config describes a guest.
type Config struct {
	IP4, IP6 string // addresses of eth0, with prefix lengths
	MTU      int
	// Card are QEMU's arguments for memory and the card that is eth0, which then asks for its address by
	// DHCP; nil: eth0 leads to Network.
	Card []string

	Network   string   // where eth0 leads: QEMU's -netdev; empty: a cable
	Memory    int      // MiB; 0: 256
	Initramfs string   // empty: the image's
	Reboots   bool     // it starts again when it is reset
	More      []string // further arguments of QEMU
}

// Guest is a running virtual machine.
type Guest struct {
	// Wire is the cable's end at its eth0, if eth0 leads to a cable.
	Wire cable.End

	qemu    *harness.Process
	dir     string
	ready   chan struct{} // holds one when it has started
	monitor *Monitor      // nil: not connected yet

	mu   sync.Mutex // guards all below
	line net.Conn
	jobs map[int]*Process
	next int
}

// Boot starts a guest and waits until its rxe0 is there. It lives as long as the test.
func Boot(t testing.TB, c Config) *Guest {
	t.Helper()
	g := Start(t, c)
	g.AwaitStart(t)
	return g
}

// Start starts a guest. It lives as long as the test.
func Start(t testing.TB, c Config) *Guest {
	t.Helper()
	kernel := mustImage(t)
	g := &Guest{jobs: map[int]*Process{}, next: 1, dir: harness.Directory(t, nil), ready: make(chan struct{}, 1)}
	switch {
	case c.Card != nil:
		c.IP4, c.IP6 = "dhcp", ""
	case c.Network == "":
		g.Wire = cable.Socket(t, g.path("wire"), g.path("eth0"))
		c.Network = fmt.Sprintf("dgram,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s", g.path("eth0"), g.path("wire"))
	}
	g.connect(t, func() *harness.Process { return harness.Spawn(t, g.command(kernel, c)) })
	go g.listen(g.line)
	return g
}

// Adopt waits for a guest that start starts: its serial line leads to the socket, which exists when start is called.
// qemu lives as long as the guest.
func Adopt(t testing.TB, start func(line, console string) (qemu *harness.Process)) *Guest {
	t.Helper()
	g := &Guest{jobs: map[int]*Process{}, next: 1, dir: harness.Directory(t, nil), ready: make(chan struct{}, 1)}
	g.connect(t, func() *harness.Process { return start(g.path("line"), g.path("console")) })
	go g.listen(g.line)
	return g
}

// connect starts QEMU and waits until it has connected to the line.
func (g *Guest) connect(t testing.TB, start func() *harness.Process) {
	t.Helper()
	line, err := net.Listen("unix", g.path("line"))
	if err != nil {
		t.Fatal(err)
	}
	defer line.Close()
	g.qemu = start()
	g.qemu.Name = "qemu"
	line.(*net.UnixListener).SetDeadline(time.Now().Add(bootLimit))
	if g.line, err = line.Accept(); err != nil {
		t.Fatalf("QEMU did not start: %v\n%s", err, g.qemu.Output())
	}
	own := g.line
	t.Cleanup(func() { own.Close() })
}

// AwaitStart waits until the guest has started and has its rxe0. Programs from before a reset have ended.
func (g *Guest) AwaitStart(t testing.TB) {
	t.Helper()
	select {
	case <-g.ready:
	case <-g.qemu.Done():
		t.Fatalf("the guest ended before it was ready\n%s\nconsole:\n%s", g.qemu.Output(), g.Console())
	case <-time.After(bootLimit):
		t.Fatalf("the guest is not ready after %v\n%s\nconsole:\n%s", bootLimit, g.qemu.Output(), g.Console())
	}
}

// Image is the directory with the guests' kernel and initramfs.
func Image(t testing.TB) string { return mustImage(t) }

func (g *Guest) path(name string) string { return filepath.Join(g.dir, name) }

// describe describes the guest's QEMU.
func (g *Guest) describe(kernel string, c Config) *rxeguest.Guest {
	return &rxeguest.Guest{
		Card: c.Card, Image: kernel, IP4: c.IP4, IP6: c.IP6, MTU: c.MTU, Network: c.Network, Memory: c.Memory, Initramfs: c.Initramfs,
		Line: "socket,path=" + g.path("line"), Console: g.path("console"), Reboots: c.Reboots, More: c.More,
	}
}

// Console returns what the guest's kernel printed.
func (g *Guest) Console() string {
	text, _ := os.ReadFile(g.path("console"))
	return string(text)
}

// Kill ends the guest as a power cut would.
func (g *Guest) Kill() {
	g.qemu.Signal(syscall.SIGKILL)
	<-g.qemu.Done()
}

// listen reads events until the line ends. Then all programs have ended, if the guest has not migrated.
func (g *Guest) listen(line net.Conn) {
	in := json.NewDecoder(bufio.NewReader(line))
	for {
		var e talk.Event
		if in.Decode(&e) != nil {
			break
		}
		if e.ID == 0 {
			g.drop("\n(the guest has started again)\n")
			select {
			case g.ready <- struct{}{}:
			default:
			}
			continue
		}
		g.mu.Lock()
		p := g.jobs[e.ID]
		if e.Exit != nil {
			delete(g.jobs, e.ID)
		}
		g.mu.Unlock()
		if p != nil {
			p.take(e)
		}
	}
	g.mu.Lock()
	moved := g.line != line
	g.mu.Unlock()
	if !moved {
		g.drop("\n(the guest is gone)\n")
	}
}

// drop ends everything that runs.
func (g *Guest) drop(why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.jobs {
		code := -1
		p.take(talk.Event{Output: []byte(why), Exit: &code})
	}
	clear(g.jobs)
}

// ask sends a request and returns the collector of its events.
func (g *Guest) ask(t testing.TB, r talk.Request, name string) *Process {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	r.ID = g.next
	g.next++
	p := &Process{Name: name, guest: g, id: r.ID, done: make(chan struct{})}
	g.jobs[r.ID] = p
	if err := g.send(r); err != nil {
		t.Fatalf("ask the guest's agent: %v\nconsole:\n%s", err, harness.Tail(g.Console(), 30))
	}
	return p
}

// send needs g.mu.
func (g *Guest) send(r talk.Request) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = g.line.Write(append(text, '\n'))
	return err
}
