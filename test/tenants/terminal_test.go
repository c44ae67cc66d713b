package tenants

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/test/harness"
)

// A terminal is one end of a pseudo terminal, the other end of which a program has.
type terminal struct {
	*os.File
	program *os.File

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu; what the program has written
}

func newTerminal(t *testing.T, columns, rows uint16) *terminal {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	fd := int(ours.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
	}
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{File: ours}
	if term.program, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { term.program.Close() })
	go func() {
		var b [4096]byte
		for {
			n, err := ours.Read(b[:])
			if err != nil {
				return
			}
			term.mu.Lock()
			term.out.Write(b[:n])
			term.mu.Unlock()
		}
	}()
	return term
}

// screen returns what the terminal shows: the text since it was last cleared.
func (term *terminal) screen() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	text := term.out.String()
	if i := strings.LastIndex(text, "\x1b[H"); i >= 0 {
		text = text[i:]
	}
	return text
}

func (term *terminal) shows(t *testing.T, what string, f func(screen string) bool) {
	t.Helper()
	if !harness.Poll(minute, func() bool { return f(term.screen()) }) {
		t.Fatalf("%s is not shown:\n%q", what, term.screen())
	}
}

// TestTopOnTerminal: a live table, keys that sort and fold it, lines that fit, and a terminal that is restored.
func TestTopOnTerminal(t *testing.T) {
	d := startDaemon(t, filepath.Join(harness.Directory(t, nil), "store"))
	wantOut(t, d, 0, "created", "apply", "-f", writeFile(t, "w.yaml", aTenant("red")+aNIC("red", "a")+"---\n"+aNIC("red", "b")))
	const columns = 76
	term := newTerminal(t, columns, 40)
	before, err := unix.IoctlGetTermios(int(term.program.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	cmd := d.Command("top", "--every", "100ms")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.program, term.program, term.program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { cmd.Process.Kill() })

	whole := func(s string) bool { return strings.HasSuffix(s, "\x1b[J") }
	term.shows(t, "the table", func(s string) bool {
		return whole(s) && strings.Contains(s, "sorted by name") && strings.Contains(s, "red") && strings.Contains(s, "b  ")
	})
	for _, line := range strings.Split(term.screen(), "\r\n") {
		if line = strings.TrimSuffix(strings.TrimPrefix(strings.TrimRight(line, "\r"), "\x1b[H"), "\x1b[K"); len(line) > columns {
			t.Errorf("a line of %d characters on a terminal of %d: %q", len(line), columns, line)
		}
	}
	term.WriteString("o")
	term.shows(t, "another order", func(s string) bool { return whole(s) && strings.Contains(s, "sorted by out") })
	term.WriteString("t")
	term.shows(t, "tenants only", func(s string) bool { return whole(s) && strings.Contains(s, "red") && !strings.Contains(s, "train") })
	// New objects appear.
	wantOut(t, d, 0, "created", "apply", "-f", writeFile(t, "b.yaml", aTenant("blue")+aNIC("blue", "a")))
	term.shows(t, "a new tenant", func(s string) bool { return whole(s) && strings.Contains(s, "blue") })
	term.WriteString("q")
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("it ends with %v", err)
		}
	case <-t.Context().Done():
	}
	after, err := unix.IoctlGetTermios(int(term.program.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is left as %+v, it was %+v (%v)", after, before, err)
	}
	term.shows(t, "the screen from before", func(string) bool {
		term.mu.Lock()
		defer term.mu.Unlock()
		return strings.HasSuffix(term.out.String(), "\x1b[?25h\x1b[?1049l")
	})
}

// TestGetWatch: vrdma get -w prints what is there, and then every change, until the daemon ends.
func TestGetWatch(t *testing.T) {
	d := startDaemon(t, filepath.Join(harness.Directory(t, nil), "store"))
	wantOut(t, d, 0, "created", "apply", "-f", writeFile(t, "w.yaml", aTenant("red")+aNIC("red", "first")))
	table, names := harness.Spawn(t, d.Command("get", "nics", "-w")), harness.Spawn(t, d.Command("get", "nics", "-w", "-o", "name"))
	for _, p := range []*harness.Process{table, names} {
		p.Printed(t, "red/first", minute)
	}
	wantOut(t, d, 0, "created", "apply", "-f", writeFile(t, "a.yaml", aNIC("red", "second")))
	table.Printed(t, "red/second", minute)
	names.Printed(t, "nic/red/second", minute)
	wantOut(t, d, 0, "deleted", "delete", "nic", "red/first")
	table.Printed(t, "deleted", minute)
	d.Stop(t)
	for _, p := range []*harness.Process{table, names} {
		if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), "the daemon has ended") {
			t.Errorf("it ends with %d:\n%s", code, p.Output())
		}
	}
}

// TestWhatTenantsSee: administrators see their own NICs in status, top and usage. A NIC's socket shows nothing of the
// whole daemon, not even the number of others' sessions.
func TestWhatTenantsSee(t *testing.T) {
	harness.Need(t, "ibv_devinfo")
	const red, blue = 41001, 41002
	d := startDaemon(t, filepath.Join(harness.Directory(t, nil), "store"))
	wantOut(t, d, 0, "created", "apply", "-f", writeFile(t, "w.yaml", fmt.Sprintf(administered, "red", red)+"---"+fmt.Sprintf(administered, "blue", blue)))
	for range 3 { // sessions of another tenant
		wantOut(t, d, 0, "rxe0", "run", "--nic", "blue/web", "--", "ibv_devinfo")
	}
	wantOut(t, d, red, "TENANT", "usage", "--since", "1h") // and nothing yet
	wantOut(t, d, 0, "rxe0", "run", "--nic", "red/web", "--", "ibv_devinfo")
	for _, args := range [][]string{{"status"}, {"status", "-o", "json"}, {"top", "--once", "--every", "100ms"}, {"top", "--once", "--every", "100ms", "-o", "json"}, {"usage", "--since", "1h"}} {
		out, err := as(d, red, args...)
		if err != nil || !strings.Contains(out, "red") || strings.Contains(out, "blue") {
			t.Errorf("vrdma %s, by an administrator of red: %v\n%s", strings.Join(args, " "), err, out)
		}
		if args[0] == "top" && (strings.Contains(out, "of a core") || strings.Contains(out, `"pid": `+fmt.Sprint(d.PID()))) {
			t.Errorf("an administrator of red sees the daemon's processor time:\n%s", out)
		}
	}
	if out, err := as(d, blue+1, "status"); err == nil {
		t.Errorf("a stranger has a status:\n%s", out)
	}
	wantOut(t, d, 0, "of a core", "top", "--once", "--every", "100ms")
	wantOut(t, d, 0, "blue", "usage", "--since", "1m")

	// At the listener of red/web the second session is number 2, whatever others have opened.
	holds := harness.Spawn(t, d.Command("run", "--nic", "red/web", "--", harness.Compile(t, "cross"), "target"))
	holds.Printed(t, "target ", minute)
	socket := d.Socket + ".nics/red/web/nic/vrdma.sock"
	out, err := as(d, 0, "status", "-o", "json", "--socket", socket)
	if err != nil || !strings.Contains(out, `"id": 2,`) {
		t.Errorf("status at a NIC's listener: %v\n%s", err, out)
	}
	out, err = as(d, 0, "top", "--once", "--every", "100ms", "--socket", socket)
	if err != nil || strings.Contains(out, "of a core") || !strings.Contains(out, "web") {
		t.Errorf("top at a NIC's listener: %v\n%s", err, out)
	}
}
