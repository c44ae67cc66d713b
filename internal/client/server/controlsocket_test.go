package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// Environment variables with the arguments of askAsContainer.
const (
	askVariable    = "VRDMA_TEST_ASK"    // the directory of the socket to ask at, and its name
	onlyVariable   = "VRDMA_TEST_ONLY"   // ask for this operation only
	chrootVariable = "VRDMA_TEST_CHROOT" // first change the root directory to this one
)

// askAsContainer is root of a container: it asks for everything that root may have and prints the answers.
func askAsContainer() {
	dir, name := filepath.Split(os.Getenv(askVariable))
	// The working directory stays reachable after chroot: like a mounted one.
	if err := os.Chdir(dir); err != nil {
		fmt.Println("chdir:", err)
		return
	}
	if root := os.Getenv(chrootVariable); root != "" {
		if err := syscall.Chroot(root); err != nil {
			fmt.Println("chroot:", err)
			return
		}
	}
	c, err := protocol.Dial("./"+name, protocol.Hello{Kind: protocol.KindControl, Program: "container"})
	if err != nil {
		fmt.Println("refused:", err)
		return
	}
	defer c.Close()
	if op := os.Getenv(onlyVariable); op != "" {
		var r protocol.ControlReply
		err := errors.Join(c.SendJSON(protocol.ControlRequest{Op: op}), c.ReceiveJSON(&r))
		fmt.Printf("%s: %q %v\n", op, r.Error, err)
		return
	}
	var st protocol.Status
	if err := errors.Join(c.SendJSON(protocol.ControlRequest{Op: protocol.ControlStatus}), c.ReceiveJSON(&st)); err != nil {
		fmt.Println("status:", err)
	}
	fmt.Printf("sees %d sessions\n", len(st.Sessions))
	for _, op := range []string{protocol.ControlCapture, protocol.ControlStop} {
		var r protocol.ControlReply
		if err := errors.Join(c.SendJSON(protocol.ControlRequest{Op: op}), c.ReceiveJSON(&r)); err != nil {
			fmt.Println(op, err)
		}
		fmt.Printf("%s: %q\n", op, r.Error)
		if op == protocol.ControlCapture && r.Error == "" {
			return // the connection is a capture now
		}
	}
}

// ask runs askAsContainer in new namespaces.
func ask(t *testing.T, socket string, flags uintptr, chroot string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), askVariable+"="+socket, chrootVariable+"="+chroot)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&syscall.CLONE_NEWUSER != 0 {
		self := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = self, self
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestContainerRoot: uid 0 in namespaces of its own, or with a root directory of its own,
// is not the daemon's user. Neither socket lets it see others, capture or stop; root in
// another network and mount namespace with the same root directory, as under ip netns
// exec, is served.
func TestContainerRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes namespaces, for which it has to be root")
	}
	s := testServerStop(t, func() { t.Error("a container stopped the daemon") })
	open(t, s)
	for _, test := range []struct {
		name   string
		flags  uintptr
		chroot string
		why    string // "": it is served
	}{
		{"pid", syscall.CLONE_NEWPID, "", "another pid namespace"},
		{"user", syscall.CLONE_NEWUSER, "", "another user namespace"},
		{"root", 0, t.TempDir(), "another root directory"},
		{"all", syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, t.TempDir(), "another pid namespace"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := ask(t, s.control.path, test.flags, test.chroot); !strings.Contains(got, "refused:") || !strings.Contains(got, test.why) {
				t.Errorf("at the control socket: %s, want a refusal for %s", got, test.why)
			}
			got := ask(t, s.listeners.list[0].Socket, test.flags, test.chroot)
			if !strings.Contains(got, "sees 0 sessions") || strings.Count(got, "only the daemon's own user may") != 2 {
				t.Errorf("at the program socket: %s, want nothing of others", got)
			}
		})
	}
	t.Run("ip netns exec", func(t *testing.T) {
		got := ask(t, s.control.path, syscall.CLONE_NEWNS|syscall.CLONE_NEWNET, "")
		if !strings.Contains(got, "sees 1 sessions") || !strings.Contains(got, `capture: ""`) {
			t.Errorf("%s, want everything", got)
		}
	})
}

// fakeSuccession answers those that may take over.
type fakeSuccession struct{}

func (fakeSuccession) HandOver(c *protocol.Conn) {
	c.SendJSON(protocol.ControlReply{Error: "handing over"})
}

func (fakeSuccession) Upgrade(c *protocol.Conn, _ string) {
	c.SendJSON(protocol.ControlReply{Error: "upgrading"})
}

// testSuccession is testServerWith for a server with a fakeSuccession.
func testSuccession(t *testing.T, cfg Config) *Server {
	t.Helper()
	served := make(chan error, 1)
	t.Cleanup(func() { // after Close
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	s := testListener(t, cfg)
	s.ServeSuccession(fakeSuccession{})
	go func() { served <- s.Serve() }()
	return s
}

// TestContainerTakeover: if the daemon permits it, root with another root directory may take over from it, and can do nothing else.
// Root in another pid or user namespace may not.
func TestContainerTakeover(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes namespaces, for which it has to be root")
	}
	permits := testSuccession(t, Config{ContainerTakeover: true, Stop: func() { t.Error("a container stopped the daemon") }})
	denies := testSuccession(t, Config{})
	for _, test := range []struct {
		name  string
		s     *Server
		flags uintptr
		op    string
		want  string
	}{
		{"takes over", permits, 0, protocol.ControlHandOver, "handing over"},
		{"stops", permits, 0, protocol.ControlStop, "another root directory"},
		{"upgrades", permits, 0, protocol.ControlUpgrade, "another root directory"},
		{"changes objects", permits, 0, protocol.ControlObjects, "another root directory"},
		{"pid namespace", permits, syscall.CLONE_NEWPID, protocol.ControlHandOver, "refused: "},
		{"user namespace", permits, syscall.CLONE_NEWUSER, protocol.ControlHandOver, "refused: "},
		{"not permitted", denies, 0, protocol.ControlHandOver, "refused: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(onlyVariable, test.op)
			if got := ask(t, test.s.control.path, test.flags, t.TempDir()); !strings.Contains(got, test.want) {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// TestProgramSocketHasNoControl: the program socket refuses to stop the daemon and to capture, for every caller, and
// names the control socket.
func TestProgramSocketHasNoControl(t *testing.T) {
	s := testServerStop(t, func() { t.Error("stopped at the program socket") })
	c := dial(t, s, protocol.Hello{Kind: protocol.KindControl})
	for _, op := range []string{protocol.ControlStop, protocol.ControlCapture} {
		var r protocol.ControlReply
		if err := errors.Join(c.SendJSON(protocol.ControlRequest{Op: op}), c.ReceiveJSON(&r)); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(r.Error, s.control.path) {
			t.Errorf("%s: %q, want the path of the control socket in it", op, r.Error)
		}
	}
	// These requests end a conversation: each has a connection of its own.
	s.ServeSuccession(neverServed{t})
	s.ServeMigration(neverServed{t})
	for _, op := range []string{protocol.ControlHandOver, protocol.ControlUpgrade, protocol.ControlMigrate} {
		var r protocol.ControlReply
		c := dial(t, s, protocol.Hello{Kind: protocol.KindControl})
		if err := errors.Join(c.SendJSON(protocol.ControlRequest{Op: op, Move: protocol.MoveLeave, NIC: "red/web"}), c.ReceiveJSON(&r)); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(r.Error, "only the daemon's own user and root") {
			t.Errorf("%s: %q, want that only the operator may", op, r.Error)
		}
	}
	// And the control socket serves no programs.
	_, err := protocol.Dial(s.control.path, protocol.Hello{Kind: protocol.KindProcess})
	if !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("a program at the control socket: %v, want EOPNOTSUPP", err)
	}
}

// neverServed fails the test when it gets a request.
type neverServed struct{ t *testing.T }

func (n neverServed) HandOver(*protocol.Conn)                          { n.t.Error("handed over") }
func (n neverServed) Upgrade(*protocol.Conn, string)                   { n.t.Error("upgraded") }
func (n neverServed) Migrate(*protocol.Conn, *protocol.ControlRequest) { n.t.Error("moved a NIC") }

// TestControlDirectory: the directory belongs to the user alone and is outside the mounted one. The last daemon removes
// it, and the next daemon removes what a dead one left.
func TestControlDirectory(t *testing.T) {
	a, b := testListener(t, Config{}), testListener(t, Config{})
	dir := filepath.Dir(a.control.path)
	if dir != filepath.Dir(b.control.path) || a.control.path == b.control.path {
		t.Errorf("two daemons have %s and %s, want two names in one directory", a.control.path, b.control.path)
	}
	for path, want := range map[string]fs.FileMode{dir: 0o700 | fs.ModeDir, a.control.path: 0o600 | fs.ModeSocket} {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
	if strings.HasPrefix(dir, filepath.Dir(a.listeners.list[0].Socket)) {
		t.Errorf("%s lies in the directory that containers get", dir)
	}
	stale := filepath.Join(dir, "stale.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: stale, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	testListener(t, Config{})
	if _, err := os.Lstat(stale); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a dead daemon's socket is still there: %v", err)
	}
	if _, err := os.Lstat(a.control.path); err != nil {
		t.Errorf("a living daemon's socket is gone: %v", err)
	}
}

// TestControlTakenOver: a daemon whose path was removed and taken by another daemon does not remove the other's control
// socket when it ends.
func TestControlTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c", "x.sock")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	first, err := listenAt(path, os.Geteuid(), 0o700, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	second, err := listenAt(path, os.Geteuid(), 0o700, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	first.close(os.Geteuid())
	if c, err := net.Dial("unixpacket", path); err != nil {
		t.Errorf("the second daemon's socket: %v", err)
	} else {
		c.Close()
	}
	second.close(os.Geteuid())
	if _, err := os.Lstat(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}

// TestLockDirectory rejects anything that other users could have put in the directory's place.
func TestLockDirectory(t *testing.T) {
	base, uid := t.TempDir(), os.Geteuid()
	at := func(name string) string { return filepath.Join(base, name) }
	if err := errors.Join(
		os.Mkdir(at("loose"), 0o700), os.Chmod(at("loose"), 0o755),
		os.Mkdir(at("target"), 0o700), os.Symlink("target", at("link")),
		os.WriteFile(at("file"), nil, 0o600),
		os.Mkdir(at("theirs"), 0o700),
	); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"loose", "link", "file"} {
		if f, err := lockDirectory(at(name), uid, 0o700); err == nil {
			f.Close()
			t.Errorf("%s was accepted", name)
		}
	}
	if f, err := lockDirectory(at("theirs"), uid+1, 0o700); err == nil {
		f.Close()
		t.Error("a directory of another user was accepted")
	}
	f, err := lockDirectory(at("new"), uid, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	// The directory is removed while another process waits for the lock: the waiter creates it again.
	done := make(chan error, 1)
	go func() {
		g, err := lockDirectory(at("new"), uid, 0o700)
		if err == nil {
			_, err = os.Lstat(at("new"))
			g.Close()
		}
		done <- err
	}()
	os.Remove(at("new"))
	f.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
