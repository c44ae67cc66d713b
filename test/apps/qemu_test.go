package apps

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// A machine is QEMU without a running processor, and its monitor.
type machine struct {
	*harness.Process
	monitor net.Conn
	in      *json.Decoder
}

// startMachine starts QEMU beside a daemon.
func startMachine(t *testing.T, d *harness.Daemon, rdma bool, args ...string) *machine {
	t.Helper()
	socket := filepath.Join(harness.Directory(t, nil), "monitor")
	argv := append([]string{"qemu-system-x86_64", "-accel", "tcg", "-nodefaults", "-display", "none", "-S", "-qmp", "unix:" + socket + ",server=on,wait=off"}, args...)
	if !rdma {
		argv = plain(argv...)
	}
	m := &machine{Process: d.Launch(t, argv...)}
	t.Cleanup(m.End)
	if !harness.Poll(minute, func() (ok bool) {
		var err error
		m.monitor, err = net.Dial("unix", socket)
		return err == nil || m.Ended(0)
	}) || m.monitor == nil {
		t.Fatalf("QEMU has no monitor:\n%s", m.Output())
	}
	t.Cleanup(func() { m.monitor.Close() })
	m.monitor.SetDeadline(time.Now().Add(2 * minute))
	m.in = json.NewDecoder(m.monitor)
	m.ask(t, "qmp_capabilities", nil)
	return m
}

// ask runs a command of the monitor and returns what it returns.
func (m *machine) ask(t *testing.T, command string, arguments map[string]any) map[string]any {
	t.Helper()
	question := map[string]any{"execute": command}
	if arguments != nil {
		question["arguments"] = arguments
	}
	if err := json.NewEncoder(m.monitor).Encode(question); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, m.Output())
	}
	for {
		var answer struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := m.in.Decode(&answer); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, m.Output())
		}
		if answer.Error != nil {
			t.Fatalf("%s: %s\n%s", command, answer.Error.Desc, m.Output())
		}
		if answer.Return != nil { // else the greeting, or an event
			var out map[string]any
			json.Unmarshal(answer.Return, &out) // some return a list, which nobody reads
			return out
		}
	}
}

// TestMigrate: QEMU moves a machine's memory over RDMA, registered before or piece by piece, private or shared, and the other side has
// the same bytes.
func TestMigrate(t *testing.T) {
	harness.Need(t, "qemu-system-x86_64")
	places(t, func(t *testing.T, p place) {
		size := 32 << 20
		if recording() || harness.All() {
			size = 256 << 20
		}
		data := make([]byte, size)
		rand.NewChaCha8([32]byte{1}).Read(data)
		content := filepath.Join(harness.Directory(t, nil), "content")
		if err := os.WriteFile(content, data, 0o600); err != nil {
			t.Fatal(err)
		}
		version := version(t, "qemu-system-x86_64", "--version")
		for _, c := range []struct {
			name           string
			pinned, shared bool
		}{{"default", false, false}, {"rdma-pin-all", true, false}, {"share=on", false, true}} {
			if c.name != "default" && !recording() && !harness.All() {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				move := func(t *testing.T, rdma bool) float64 { return p.migrate(t, rdma, c.pinned, c.shared, content, data) }
				p.compare(t, Row{
					Program: "QEMU " + version,
					Started: "vrdma run -- qemu-system-x86_64 …; migrate rdma:HOST:PORT",
					What:    fmt.Sprintf("migration of %d MiB, %s", size>>20, c.name), Unit: "s", Lower: true,
					Checked: "memory of the destination",
				}, uint64(size/4096/64), func(t *testing.T) float64 { return move(t, true) }, func(t *testing.T) float64 { return move(t, false) })
			})
		}
	})
}

// migrate moves a machine from the client's to the server's host and returns the seconds that QEMU says it took.
func (p place) migrate(t *testing.T, rdma, pinned, shared bool, content string, data []byte) float64 {
	t.Helper()
	const at = 64 << 20
	ram := fmt.Sprint((len(data) >> 20) + 96)
	args := []string{"-m", ram}
	if shared {
		args = append(args, "-object", "memory-backend-memfd,id=ram,share=on,size="+ram+"M", "-machine", "memory-backend=ram")
	}
	to := startMachine(t, p.server, rdma, append(args, "-incoming", "defer")...)
	from := startMachine(t, p.client, rdma, append(args, "-device", fmt.Sprintf("loader,file=%s,addr=%d,force-raw=on", content, at))...)
	uri := fmt.Sprintf("tcp:%s:%d", p.ip, harness.FreePort(t))
	if rdma {
		uri = "rdma" + uri[3:]
	}
	for _, m := range []*machine{to, from} {
		m.ask(t, "migrate-set-parameters", map[string]any{"max-bandwidth": 100 << 30})
		if rdma && pinned {
			m.ask(t, "migrate-set-capabilities", map[string]any{"capabilities": []any{map[string]any{"capability": "rdma-pin-all", "state": true}}})
		}
	}
	to.ask(t, "migrate-incoming", map[string]any{"uri": uri})
	from.ask(t, "migrate", map[string]any{"uri": uri})
	var took float64
	if !harness.Poll(2*minute, func() bool {
		state := from.ask(t, "query-migrate", nil)
		switch state["status"] {
		case "failed", "cancelled":
			t.Fatalf("migration: %v\nsource:\n%s\ndestination:\n%s", state, from.Output(), to.Output())
		case "completed":
			took, _ = state["total-time"].(float64) // milliseconds
			return true
		}
		return false
	}) {
		t.Fatalf("the migration does not end\nsource:\n%s\ndestination:\n%s", from.Output(), to.Output())
	}
	copied := filepath.Join(harness.Directory(t, nil), "copied")
	to.ask(t, "pmemsave", map[string]any{"val": at, "size": len(data), "filename": copied})
	got, err := os.ReadFile(copied)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Errorf("the destination's memory differs")
	}
	from.End()
	to.End()
	os.Remove(copied)
	return max(took, 1) / 1000
}
