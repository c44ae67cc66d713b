package vm

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// TestMemory takes memory from a machine with a balloon and returns it, and plugs memory in and out, while its programs
// exchange and check data. It does so at QEMU's monitor, as an operator would.
func TestMemory(t *testing.T) {
	if !harness.All() {
		t.Skip("a machine boots: long form")
	}
	d := start(t, world)
	socket := filepath.Join(harness.Directory(t, nil), "monitor")
	m := bootWith(t, d, guest.Ours(t, func(root string) { addBalloon(t, root) }), "red/a", "10.1.0.1", 320,
		"-m", "slots=4,maxmem=2G", "-device", "virtio-balloon-pci", "-monitor", "unix:"+socket+",server=on,wait=off")
	qemu := openMonitor(t, socket)
	m.Run(t, limit, "insmod", "/virtio_balloon.ko")

	server := m.verbs(t, "rping", "-s", "-a", m.ip, "-V", "-S", "8000")
	var client *guest.Process
	flows := func(t *testing.T, when string) {
		t.Helper()
		before := sent(t, d, m.nic)
		if !harness.Poll(limit, func() bool { return sent(t, d, m.nic) > before+100_000 || client.Ended(0) || server.Ended(0) }) || client.Ended(0) || server.Ended(0) {
			t.Fatalf("%s: client %s\n%s\nserver %s\n%s", when, client.Fate(), client.Output(), server.Fate(), server.Output())
		}
	}
	for try := 0; ; try++ { // refused until the server listens
		client = m.verbs(t, "rping", "-c", "-a", m.ip, "-V", "-S", "8000", "-C", "100000000")
		if harness.Poll(limit, func() bool { return sends(t, d) || client.Ended(0) }) && !client.Ended(0) {
			break
		}
		if server.Ended(0) || try == 50 {
			t.Fatalf("client: %s\n%s\nserver: %s\n%s", client.Fate(), client.Output(), server.Fate(), server.Output())
		}
	}
	flows(t, "at first")

	t.Run("balloon", func(t *testing.T) {
		for _, mib := range []int{250, 320} {
			qemu.ask(t, fmt.Sprintf("balloon %d", mib))
			qemu.await(t, "info balloon", fmt.Sprintf("actual=%d\r", mib))
			flows(t, fmt.Sprintf("%d MiB are left", mib))
			m.pair(t, "ibv_rc_pingpong", "-g", "0", "-n", "3") // and more can be registered
		}
	})
	t.Run("plug", func(t *testing.T) {
		// Client and server register 192 MiB: more than half of what the machine had, which was as much as its agent pins.
		big := []string{"ib_write_bw", "-x", "0", "-F", "-n", "5", "-s", fmt.Sprint(48 << 20)}
		qemu.plug(t, m, "first", 256, "online_kernel")
		flows(t, "more memory")
		m.pair(t, big...)
		flows(t, "more memory is used")
	})
	t.Run("unplug", func(t *testing.T) {
		qemu.plug(t, m, "second", 128, "online_movable")
		flows(t, "still more memory")
		if mapped(t, d, 128<<20) == 0 {
			t.Error("the daemon has not mapped memory that was plugged in")
		}
		qemu.ask(t, "device_del second")
		qemu.gone(t, "info memory-devices", `"second"`)
		flows(t, "less memory")
		m.pair(t, "ibv_rc_pingpong", "-g", "0", "-n", "3")
	})
	client.End()
	server.End()
	qemu.ask(t, "object_del second-ram")
	// Unplugged memory is free when no program can use it any more.
	if !harness.Poll(limit, func() bool { return len(d.Status(t).Sessions) == 0 && mapped(t, d, 128<<20) == 0 }) {
		t.Errorf("the daemon keeps memory that was unplugged: %d mappings of it, sessions %q", mapped(t, d, 128<<20), programs(t, d))
	}
	m.pair(t, "ibv_rc_pingpong", "-g", "0", "-n", "3")
}

// addBalloon puts the balloon's driver into a root.
func addBalloon(t *testing.T, root string) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(guest.Image(t), "kernel/lib/modules/*/kernel/drivers/virtio/virtio_balloon.ko*"))
	if err != nil || len(list) != 1 {
		t.Fatalf("the guests' kernel has %d drivers for a balloon: %v", len(list), err)
	}
	script := `case $1 in *.xz) xz -dc "$1" ;; *) cat "$1" ;; esac >"$2"/virtio_balloon.ko`
	if out, err := exec.Command("sh", "-c", script, "sh", list[0], root).CombinedOutput(); err != nil {
		t.Fatalf("add the balloon: %v\n%s", err, out)
	}
}

// mapped counts the daemon's mappings of a memfd that have this size.
func mapped(t *testing.T, d *harness.Daemon, size uint64) (n int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", d.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(text)) {
		var begin, end uint64
		if fmt.Sscanf(l, "%x-%x", &begin, &end); end-begin == size && strings.Contains(l, "/memfd:") {
			n++
		}
	}
	return n
}

// A monitor is a connection to QEMU's monitor.
type monitor struct {
	conn net.Conn
	in   *bufio.Reader
}

// openMonitor connects to the monitor at a socket.
func openMonitor(t *testing.T, path string) *monitor {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	q := &monitor{conn, bufio.NewReader(conn)}
	q.read(t)
	return q
}

// read reads up to the prompt.
func (q *monitor) read(t *testing.T) string {
	t.Helper()
	q.conn.SetReadDeadline(time.Now().Add(limit))
	var b strings.Builder
	for !strings.HasSuffix(b.String(), "(qemu) ") {
		c, err := q.in.ReadByte()
		if err != nil {
			t.Fatalf("QEMU's monitor says %q and then %v", b.String(), err)
		}
		b.WriteByte(c)
	}
	return b.String()
}

// ask sends a command and returns the answer.
func (q *monitor) ask(t *testing.T, command string) string {
	t.Helper()
	if _, err := fmt.Fprintln(q.conn, command); err != nil {
		t.Fatal(err)
	}
	out := q.read(t)
	if strings.Contains(out, "Error:") {
		t.Fatalf("%s: %s", command, out)
	}
	return out
}

// await repeats a command until its answer has a text.
func (q *monitor) await(t *testing.T, command, text string) {
	t.Helper()
	var out string
	if !harness.Poll(limit, func() bool { out = q.ask(t, command); return strings.Contains(out, text) }) {
		t.Fatalf("%s says %q, want %q", command, out, text)
	}
}

// gone repeats a command until its answer no longer has a text.
func (q *monitor) gone(t *testing.T, command, text string) {
	t.Helper()
	var out string
	if !harness.Poll(limit, func() bool { out = q.ask(t, command); return !strings.Contains(out, text) }) {
		t.Fatalf("%s says %q, and %q is not to be there", command, out, text)
	}
}

// plug plugs memory in and makes the machine use it.
func (q *monitor) plug(t *testing.T, m *machine, name string, mib int, how string) {
	t.Helper()
	q.ask(t, fmt.Sprintf("object_add memory-backend-memfd,id=%s-ram,size=%dM,share=on", name, mib))
	q.ask(t, fmt.Sprintf("device_add pc-dimm,id=%[1]s,memdev=%[1]s-ram", name))
	m.Run(t, limit, "sh", "-c", fmt.Sprintf(`i=0
		until [ $(grep -l offline /sys/devices/system/memory/memory*/state | wc -l) -eq %d ]; do
			i=$((i + 1)); [ $i -lt 9000 ] || { grep . /sys/devices/system/memory/memory*/state; exit 1; }; usleep 20000
		done
		for f in $(grep -l offline /sys/devices/system/memory/memory*/state); do echo %s >$f || exit 1; done`, mib/128, how))
}
