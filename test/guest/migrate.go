package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// A Monitor is QEMU's control socket (QMP).
type Monitor struct {
	conn net.Conn
	in   *json.Decoder
}

// monitorAt are QEMU's arguments for a Monitor.
func monitorAt(path string) []string { return []string{"-qmp", "unix:" + path + ",server=on,wait=off"} }

// dialMonitor connects to the monitor of a QEMU that is starting.
func dialMonitor(t testing.TB, path string) *Monitor {
	t.Helper()
	m := new(Monitor)
	var err error
	if !harness.Poll(bootLimit, func() bool {
		m.conn, err = net.Dial("unix", path)
		return err == nil
	}) {
		t.Fatalf("QEMU's monitor: %v", err)
	}
	t.Cleanup(func() { m.conn.Close() })
	m.in = json.NewDecoder(m.conn)
	var greeting json.RawMessage
	if err := m.in.Decode(&greeting); err != nil {
		t.Fatal(err)
	}
	m.Do(t, "qmp_capabilities", nil)
	return m
}

// Ask runs a command and returns its result. Events are skipped.
func (m *Monitor) Ask(command string, arguments map[string]any) (json.RawMessage, error) {
	m.conn.SetDeadline(time.Now().Add(bootLimit))
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(m.conn).Encode(request); err != nil {
		return nil, err
	}
	for {
		var answer struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
			Event  string
		}
		if err := m.in.Decode(&answer); err != nil {
			return nil, err
		}
		switch {
		case answer.Error != nil:
			return nil, errors.New(answer.Error.Desc)
		case answer.Event == "":
			return answer.Return, nil
		}
	}
}

// Do is Ask for a command that must succeed.
func (m *Monitor) Do(t testing.TB, command string, arguments map[string]any) json.RawMessage {
	t.Helper()
	out, err := m.Ask(command, arguments)
	if err != nil {
		t.Fatalf("QEMU's %s: %v", command, err)
	}
	return out
}

// A Migration is what QEMU says of one.
type Migration struct {
	Status   string
	Downtime int    // ms
	Why      string `json:"error-desc"`
	RAM      struct {
		Passes      int `json:"dirty-sync-count"`
		Transferred int
	}
}

// Migration returns the state of the last migration.
func (m *Monitor) Migration(t testing.TB) (g Migration) {
	t.Helper()
	if err := json.Unmarshal(m.Do(t, "query-migrate", nil), &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// Await waits until a migration has a status.
func (m *Monitor) Await(t testing.TB, status string) (g Migration) {
	t.Helper()
	if !harness.Poll(bootLimit, func() bool {
		g = m.Migration(t)
		return g.Status == status || g.Status == "failed"
	}) || g.Status != status {
		t.Fatalf("the migration is %s (%s) after %d passes, want %s", g.Status, g.Why, g.RAM.Passes, status)
	}
	return g
}

// Running waits until the guest runs.
func (m *Monitor) Running(t testing.TB) {
	t.Helper()
	var s struct{ Status string }
	if !harness.Poll(bootLimit, func() bool {
		return json.Unmarshal(m.Do(t, "query-status", nil), &s) == nil && s.Status == "running"
	}) {
		t.Fatalf("the guest is %s", s.Status)
	}
}

// Monitor returns the monitor of a guest of Start.
func (g *Guest) Monitor(t testing.TB) *Monitor {
	t.Helper()
	if g.monitor == nil {
		g.monitor = dialMonitor(t, g.path("monitor"))
	}
	return g.monitor
}

// A Copy is a QEMU to which a guest can migrate.
type Copy struct {
	Monitor *Monitor
	guest   *Guest
	dir     string
	qemu    *harness.Process
	line    net.Conn
}

// URI is where the guest migrates to.
func (c *Copy) URI() string { return "unix:" + c.dir + "/incoming" }

// Copy starts a QEMU that waits for the guest. The configuration is that of Start, apart from the card's socket.
func (g *Guest) Copy(t testing.TB, config Config) *Copy {
	t.Helper()
	c := &Copy{guest: g, dir: harness.Directory(t, nil)}
	at := &Guest{dir: c.dir}
	config.More = append(config.More[:len(config.More):len(config.More)], "-incoming", c.URI())
	at.connect(t, func() *harness.Process { return harness.Spawn(t, at.command(mustImage(t), config)) })
	c.qemu, c.line = at.qemu, at.line
	c.Monitor = dialMonitor(t, at.path("monitor"))
	return c
}

// Kill ends the copy.
func (c *Copy) Kill() {
	c.qemu.Signal(syscall.SIGKILL)
	<-c.qemu.Done()
}

// Ended reports whether the copy has ended.
func (c *Copy) Ended() bool { return c.qemu.Ended(0) }

// Became makes a copy, to which the guest has migrated, the guest. Its old QEMU ends.
func (g *Guest) Became(t testing.TB, c *Copy) {
	t.Helper()
	c.Monitor.Running(t)
	old, line := g.qemu, g.line
	g.mu.Lock()
	g.qemu, g.line, g.monitor, g.dir = c.qemu, c.line, c.Monitor, c.dir
	g.mu.Unlock()
	go g.listen(c.line)
	old.Signal(syscall.SIGKILL)
	<-old.Done()
	line.Close()
}

// command is a QEMU of the guest.
func (g *Guest) command(kernel string, c Config) *exec.Cmd {
	argv := g.describe(kernel, c).Command()
	argv = append(argv, monitorAt(g.path("monitor"))...)
	return exec.Command(argv[0], argv[1:]...)
}

// Migrate migrates the guest to a copy and returns what QEMU says of it.
func (g *Guest) Migrate(t testing.TB, c *Copy) Migration {
	t.Helper()
	m := g.Monitor(t)
	m.Do(t, "migrate", map[string]any{"uri": c.URI()})
	done := m.Await(t, "completed")
	g.Became(t, c)
	return done
}

// SetCapability switches a capability of migrations.
func (m *Monitor) SetCapability(t testing.TB, name string, on bool) {
	t.Helper()
	m.Do(t, "migrate-set-capabilities", map[string]any{"capabilities": []any{map[string]any{"capability": name, "state": on}}})
}

// SetLimits sets the bandwidth of migrations, in bytes per second, and the longest pause.
func (m *Monitor) SetLimits(t testing.TB, bandwidth int, pause time.Duration) {
	t.Helper()
	m.Do(t, "migrate-set-parameters", map[string]any{"max-bandwidth": bandwidth, "downtime-limit": pause.Milliseconds()})
}

func (m Migration) String() string {
	return fmt.Sprintf("%s, downtime %d ms, %d passes, %d MiB", m.Status, m.Downtime, m.RAM.Passes, m.RAM.Transferred>>20)
}
