package server

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// roomy has limits far above what a few clients need.
func roomy() budget.Limits {
	var l budget.Limits
	for k := range l.All {
		l.All[k], l.Others[k], l.User[k] = 1<<40, 1<<39, 1<<38
	}
	l.User[budget.Tools] = 19
	return l
}

// connectAs connects as another user. Only this thread changes its user, and only for the call.
func connectAs(t testing.TB, socket string, uid int) *protocol.Conn {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	keep := ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		t.Fatalf("cannot become user %d: %v", uid, e)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); e != 0 {
		panic(e) // this thread is not used again
	}
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return protocol.NewConn(c.(*net.UnixConn))
}

// greetAs is connectAs with a hello. err is a refusal or the connection's error.
func greetAs(t testing.TB, s *Server, uid int, h protocol.Hello) (*protocol.Conn, protocol.Welcome, error) {
	t.Helper()
	c := connectAs(t, s.listeners.list[0].Socket, uid)
	h.Magic, h.Protocol = protocol.Magic, protocol.Version
	if err := c.WriteMessage(h.Append(nil)); err != nil {
		return c, protocol.Welcome{}, err
	}
	buf := make([]byte, 1024)
	n, fds, err := c.ReadMessage(buf)
	if err != nil {
		return c, protocol.Welcome{}, err
	}
	protocol.CloseFDs(fds)
	w, err := protocol.ParseWelcome(buf[:n])
	if err == nil && w.Error != 0 {
		err = &protocol.Refusal{Errno: syscall.Errno(w.Error), Text: w.Text}
	}
	return c, w, err
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becomes other users, for which it has to be root")
	}
}

// sharedServer is one that other users may use.
func sharedServer(t testing.TB, l budget.Limits) (*Server, *budget.Ledger) {
	t.Helper()
	needRoot(t)
	ledger := budget.New(l)
	s := testServerWith(t, Config{Budget: ledger, Listeners: []Listener{{SocketMode: 0o666}}})
	dir := filepath.Dir(s.listeners.list[0].Socket)
	for _, d := range []string{dir, filepath.Dir(dir)} { // of t.TempDir, 0700
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return s, ledger
}

const attacker, bystander = 65534, 1234

// TestSilentConnections: a user who opens as many silent connections as the daemon allows leaves descriptors for
// another user and for the owner, and all are released.
func TestSilentConnections(t *testing.T) {
	l := roomy()
	l.User[budget.Files], l.Others[budget.Files], l.All[budget.Files] = 20, 30, 40
	s, ledger := sharedServer(t, l)
	var silent []*protocol.Conn
	for range 30 {
		silent = append(silent, connectAs(t, s.listeners.list[0].Socket, attacker))
	}
	account := ledger.User(attacker)
	defer account.Drop()
	eventually(t, "the user's limit", func() bool { return account.Used()[budget.Files] == 20 })
	_, _, err := greetAs(t, s, attacker, protocol.Hello{Kind: protocol.KindProcess})
	if err == nil || errors.Is(err, syscall.EMFILE) && !strings.Contains(err.Error(), "user 65534 may have 20 open files") {
		t.Errorf("over the limit: %v, want a refusal that says which", err)
	}
	if _, _, err := greetAs(t, s, bystander, protocol.Hello{Kind: protocol.KindProcess}); err != nil {
		t.Errorf("another user: %v", err)
	}
	owner := open(t, s) // uses the reserve: 24 are taken, 30 is what the others may have
	pd(owner)
	for _, c := range silent {
		c.Close()
	}
	eventually(t, "what the attacker had", func() bool { return account.Used() == budget.Bill{} })
	if _, _, err := greetAs(t, s, attacker, protocol.Hello{Kind: protocol.KindProcess}); err != nil {
		t.Errorf("after giving everything back: %v", err)
	}
}

// TestProcessConnections: every PROCESS connection holds more than its socket.
func TestProcessConnections(t *testing.T) {
	l := roomy()
	l.User[budget.Files] = 27
	s, _ := sharedServer(t, l)
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		_, _, err = greetAs(t, s, attacker, protocol.Hello{Kind: protocol.KindProcess})
	}
	if n != 6 || !errors.Is(err, syscall.EMFILE) || !strings.Contains(err.Error(), "user 65534") {
		t.Errorf("connection %d: %v, want the sixth of five descriptors each refused with EMFILE", n, err)
	}
	open(t, s)
}

// TestOwnerElsewhere: root of a container has the owner's user number, but neither the owner's account nor the owner's
// share of turns and threads.
func TestOwnerElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		pid         string
		want, share int
	}{"at home": {"", 0, -1}, "elsewhere": {"pid:[1]", 1, os.Getuid()}} {
		t.Run(name, func(t *testing.T) {
			ledger := budget.New(roomy())
			served := make(chan error, 1)
			t.Cleanup(func() { <-served }) // after Close
			s := testListener(t, Config{Budget: ledger})
			if test.pid != "" {
				s.admission.home.Whole.Pid = test.pid // as if the daemon lived elsewhere
			}
			go func() { served <- s.Serve() }()
			dial(t, s, protocol.Hello{Kind: protocol.KindProcess})
			if n := ledger.Users(); n != test.want {
				t.Errorf("%d users beside the owner, want %d", n, test.want)
			}
			s.clients.mu.Lock()
			defer s.clients.mu.Unlock()
			for _, p := range s.clients.processes {
				if got := p.Share(); got != test.share {
					t.Errorf("its turns and threads are those of %d, want %d", got, test.share)
				}
			}
		})
	}
}

// TestUnfinishedRequest: the daemon keeps little of an incomplete request.
func TestUnfinishedRequest(t *testing.T) {
	s := testServer(t)
	c := dial(t, s, protocol.Hello{Kind: protocol.KindControl})
	for range 2 {
		if err := c.WriteMessage([]byte("+" + strings.Repeat(" ", 3000))); err != nil {
			t.Fatal(err)
		}
	}
	var r protocol.ControlReply
	if err := c.ReceiveJSON(&r); err != nil || !strings.Contains(r.Error, "4096 bytes") {
		t.Errorf("after 6000 bytes: %+v, %v, want an error that says what the limit is", r, err)
	}
}

// TestTools: a user may have a limited number of tool connections, and fewer traces.
func TestTools(t *testing.T) {
	s, _ := sharedServer(t, roomy())
	var tools []*protocol.Conn
	for range 4 {
		c, _, err := greetAs(t, s, attacker, protocol.Hello{Kind: protocol.KindControl})
		if err != nil {
			t.Fatal(err)
		}
		tools = append(tools, c)
	}
	for i, want := range []string{"", "shares of tools"} { // the second of two traces
		var r protocol.ControlReply
		c := tools[i]
		if err := errors.Join(c.SendJSON(protocol.ControlRequest{Op: protocol.ControlTrace}), c.ReceiveJSON(&r)); err != nil {
			t.Fatal(err)
		}
		if (r.Error == "") != (want == "") || !strings.Contains(r.Error, want) {
			t.Errorf("trace %d: %q, want %q", i, r.Error, want)
		}
	}
	eventually(t, "the room of the one that was refused", func() bool {
		c, _, err := greetAs(t, s, attacker, protocol.Hello{Kind: protocol.KindControl})
		tools = append(tools, c)
		return err == nil
	})
	_, _, err := greetAs(t, s, attacker, protocol.Hello{Kind: protocol.KindControl})
	if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "shares of tools") {
		t.Errorf("a fifth tool beside a trace: %v, want EBUSY", err)
	}
	if _, err := protocol.QueryStatus(s.listeners.list[0].Socket); err != nil {
		t.Errorf("the owner's status: %v", err)
	}
	tools[0].Close()
	eventually(t, "room for a tool", func() bool {
		_, _, err := greetAs(t, s, attacker, protocol.Hello{Kind: protocol.KindControl})
		return err == nil
	})
}

// TestUsersSeeTheirOwn: at the program socket a user sees the programs of that user.
func TestUsersSeeTheirOwn(t *testing.T) {
	s, _ := sharedServer(t, roomy())
	open(t, s) // the owner's
	_, w, err := greetAs(t, s, attacker, protocol.Hello{Kind: protocol.KindProcess})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := greetAs(t, s, attacker, protocol.Hello{Kind: protocol.KindUverbs, Token: w.Token}); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[int]int{attacker: 1, bystander: 0} {
		c, _, err := greetAs(t, s, uid, protocol.Hello{Kind: protocol.KindControl})
		if err != nil {
			t.Fatal(err)
		}
		var st protocol.Status
		if err := errors.Join(c.SendJSON(protocol.ControlRequest{Op: protocol.ControlStatus}), c.ReceiveJSON(&st)); err != nil {
			t.Fatal(err)
		}
		if len(st.Sessions) != want || want == 1 && st.Sessions[0].UID != uid {
			t.Errorf("user %d sees %+v, want %d sessions of their own", uid, st.Sessions, want)
		}
	}
	st, err := protocol.QueryStatus(s.listeners.list[0].Socket)
	if err != nil || len(st.Sessions) != 2 || st.Control != s.control.path {
		t.Errorf("the owner sees %+v, %v, want both sessions", st, err)
	}
}

// TestBudgetOfCommands: a command above a limit fails with an errno, and nothing stays charged after the program has
// ended.
func TestBudgetOfCommands(t *testing.T) {
	l := roomy()
	l.All[budget.State] = 1 << 20
	ledger := budget.New(l)
	s := testServerWith(t, Config{Budget: ledger})
	c := open(t, s)
	p, q := pd(c), cq(c)
	var errno syscall.Errno
	for n := 0; errno == 0 && n < 1000; n++ {
		r, fds := c.send(legacy(abi.CmdCreateQP, qpRequest(p, q), nil, 64))
		protocol.CloseFDs(fds)
		errno = syscall.Errno(r.Error)
	}
	if errno != syscall.ENOMEM {
		t.Errorf("queue pairs ended with %v, want ENOMEM", errno)
	}
	const start = 1 << 32
	c.fails("a region", legacy(abi.CmdRegMR, &abi.RegMR{Response: respAddr, Start: start, HCAVA: start, Length: 300 << 40, PDHandle: p}, nil, 12),
		syscall.EFAULT, protocol.Extent{Start: start, Length: 300 << 40, Kind: protocol.ExtentOwn, Prot: 3})
	c.dev.Close()
	c.proc.Close()
	eventually(t, "an empty account", func() bool { return ledger.Owner().Used() == budget.Bill{} })
}

// TestRecount: pages that a process has deregistered and removed from its memfd are no longer charged when another
// process of the user needs the budget, although no message said so.
func TestRecount(t *testing.T) {
	const start, size = 1 << 32, 48 << 20
	l := roomy()
	l.All[budget.Memory] = 64 << 20
	ledger := budget.New(l)
	s := testServerWith(t, Config{Budget: ledger})
	for range 3 {
		c := open(t, s) // it stays until the end
		file := int(c.proc.Files[0].Fd())
		if err := unix.Fallocate(file, 0, start, size); err != nil {
			t.Fatal(err)
		}
		r := c.must(legacy(abi.CmdRegMR, &abi.RegMR{Response: respAddr, Start: start, HCAVA: start, Length: size, PDHandle: pd(c)}, nil, 12),
			protocol.Extent{Start: start, Length: size, Kind: protocol.ExtentOwn, Prot: 3})
		c.must(legacy(abi.CmdDeregMR, &abi.DeregMR{MRHandle: u32(r, 0)}, nil, 0))
		if err := unix.Fallocate(file, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, start, size); err != nil {
			t.Fatal(err)
		}
	}
	st, err := protocol.QueryStatus(s.listeners.list[0].Socket)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range st.Budgets {
		if b.Kind == budget.Memory.String() {
			t.Errorf("%s is charged %d bytes of memory, want none", b.Whose, b.Used)
		}
	}
}

// TestRingsOnceMore: destroyed rings that are not reclaimed yet are charged, but do not cause the refusal of a new
// ring.
func TestRingsOnceMore(t *testing.T) {
	create := func(entries uint32) []byte {
		return legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CQE: entries, CompChannel: -1}, nil, 24)
	}
	destroy := func(cq uint32) []byte {
		return legacy(abi.CmdDestroyCQ, &abi.DestroyCQ{Response: respAddr, CQHandle: cq}, nil, 8)
	}
	l := roomy()
	l.All[budget.Rings] = 70_000 // a ring of 1000 has 68 KiB
	ledger := budget.New(l)
	s := testServerWith(t, Config{Budget: ledger})
	c := open(t, s)
	c.must(destroy(u32(c.must(create(10)), 0)))
	if ledger.Owner().Used()[budget.Rings] == 0 {
		t.Fatal("a small ring was reclaimed at once: nothing is tested")
	}
	large := u32(c.must(create(1000)), 0)
	if used := ledger.Owner().Used()[budget.Rings]; used < 64<<10 {
		t.Errorf("%d bytes are charged", used)
	}
	c.fails("one too many", create(1000), syscall.ENOMEM)
	c.must(destroy(large))
	c.must(create(1000))
}
