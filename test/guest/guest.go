package guest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma/test/cable"
	"vrdma/test/guest/talk"
	"vrdma/test/harness"
)

// bootLimit is for a machine that does much else besides.
const bootLimit = 2 * time.Minute

// Config says what a guest is to be.
type Config struct {
	IP4, IP6 string // addresses of eth0, with prefix lengths
	MTU      int
}

// Guest is a running virtual machine.
type Guest struct {
	// Wire leads to its eth0.
	Wire cable.End

	qemu *harness.Process
	dir  string

	mu   sync.Mutex // guards all below
	line net.Conn
	jobs map[int]*Process
	next int
}

// Boot starts a guest and waits until its rxe0 is there. It lives as long as the test.
func Boot(t testing.TB, c Config) *Guest {
	t.Helper()
	kernel := mustImage(t)
	g := &Guest{jobs: map[int]*Process{}, next: 1, dir: harness.Directory(t, nil)}
	g.Wire = cable.Socket(t, g.path("wire"), g.path("eth0"))
	line, err := net.Listen("unix", g.path("line"))
	if err != nil {
		t.Fatal(err)
	}
	defer line.Close()
	g.qemu = harness.Spawn(t, g.command(kernel, c))
	g.qemu.Name = "qemu"
	line.(*net.UnixListener).SetDeadline(time.Now().Add(20 * time.Second))
	if g.line, err = line.Accept(); err != nil {
		t.Fatalf("QEMU did not start: %v\n%s", err, g.qemu.Output())
	}
	ready := make(chan struct{})
	go g.listen(ready)
	t.Cleanup(func() { g.line.Close() })
	select {
	case <-ready:
	case <-g.qemu.Done():
		t.Fatalf("the guest ended before it was ready\n%s\nconsole:\n%s", g.qemu.Output(), g.Console())
	case <-time.After(bootLimit):
		t.Fatalf("the guest is not ready after %v\n%s\nconsole:\n%s", bootLimit, g.qemu.Output(), g.Console())
	}
	return g
}

func (g *Guest) path(name string) string { return filepath.Join(g.dir, name) }

// command is QEMU's. Emulated code runs fastest on a plain processor: "rep movsb" goes a
// byte at a time and carry-less multiplication through a slow helper, so the guest is not
// told of them. The clock's frequency is told, because measuring it on a busy machine
// goes wrong.
func (g *Guest) command(kernel string, c Config) *exec.Cmd {
	const cpu = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+rdrand"
	khz := clock()
	boot := fmt.Sprintf("console=ttyS0 quiet panic=-1 mitigations=off nokaslr nopti tsc=reliable tsc_early_khz=%d lpj=%d "+
		"no_timer_check audit=0 selinux=0 apparmor=0 random.trust_cpu=on cryptomgr.notests "+
		"guest.ip4=%s guest.ip6=%s guest.mtu=%d", khz, khz*4, c.IP4, c.IP6, c.MTU)
	return exec.Command("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-M", "q35",
		"-accel", "tcg,thread=multi,tb-size=256", "-cpu", cpu, "-smp", "1", "-m", "256",
		"-display", "none", "-no-reboot", "-serial", "file:"+g.path("console"),
		"-kernel", filepath.Join(kernel, "vmlinux"), "-initrd", filepath.Join(kernel, "initramfs"), "-append", boot,
		"-netdev", fmt.Sprintf("dgram,id=n0,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s", g.path("eth0"), g.path("wire")),
		"-device", "virtio-net-pci,netdev=n0,mac=52:54:00:77:00:02,romfile=",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=line,path="+g.path("line"),
		"-device", "virtserialport,chardev=line,name=line")
}

// clock is the frequency of this machine's time stamp counter, which is the guest's.
func clock() int {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "cpu MHz" {
			var mhz float64
			if _, err := fmt.Sscan(strings.TrimSpace(value), &mhz); err == nil && mhz > 0 {
				return int(mhz * 1000)
			}
		}
	}
	return 2_000_000
}

// Console is what the guest's kernel said.
func (g *Guest) Console() string {
	text, _ := os.ReadFile(g.path("console"))
	return string(text)
}

// Kill ends the guest as a power cut would.
func (g *Guest) Kill() {
	g.qemu.Signal(syscall.SIGKILL)
	<-g.qemu.Done()
}

// listen takes events until the line ends; then everything that runs has ended.
func (g *Guest) listen(ready chan<- struct{}) {
	in := json.NewDecoder(bufio.NewReader(g.line))
	for {
		var e talk.Event
		if in.Decode(&e) != nil {
			break
		}
		if e.ID == 0 {
			close(ready)
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
	defer g.mu.Unlock()
	for _, p := range g.jobs {
		code := -1
		p.take(talk.Event{Output: []byte("\n(the guest is gone)\n"), Exit: &code})
	}
	clear(g.jobs)
}

// ask sends a request and returns what its events are collected in.
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
