package test

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// Users who share a daemon with an attacker.
const attackerUID, bystanderUID = 65534, 1234

// as runs f on a thread that is another user's meanwhile.
func as(t testing.TB, uid int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	keep := ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		t.Fatalf("cannot become user %d: %v", uid, e)
	}
	defer func() {
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); e != 0 {
			panic(e) // this thread is not used again
		}
	}()
	f()
}

// A raw is a hand-written client of the attacker.
type raw struct {
	t         testing.TB
	proc, dev *protocol.Session
	pd        uint32
	buf       [4096]byte
}

const rawAnswer = 0x7000_0000_1000

// newRaw introduces a process, opens the device and makes a protection domain.
func newRaw(t testing.TB, d *harness.Daemon, uid int) (r *raw, err error) {
	t.Helper()
	r = &raw{t: t}
	as(t, uid, func() {
		if r.proc, err = protocol.Dial(d.Socket, protocol.Hello{Kind: protocol.KindProcess, Program: "raw"}); err == nil {
			r.dev, err = protocol.Dial(d.Socket, protocol.Hello{Kind: protocol.KindUverbs, Token: r.proc.Welcome.Token})
		}
	})
	if err == nil {
		_, err = r.command(abi.CmdGetContext, abi.Encode(nil, &abi.GetContext{Response: rawAnswer}), 8)
	}
	if err == nil {
		r.pd, err = r.command(abi.CmdAllocPD, abi.Encode(nil, &abi.AllocPD{Response: rawAnswer}), 4)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *raw) close() {
	for _, s := range []*protocol.Session{r.dev, r.proc} {
		if s != nil {
			s.Close()
		}
	}
}

// command makes a command and returns the first word of the answer.
func (r *raw) command(cmd uint32, body []byte, out int, extents ...protocol.Extent) (uint32, error) {
	hdr := abi.CmdHeader{Command: cmd, InWords: uint16((len(body) + 8) / 4), OutWords: uint16((out + 3) / 4)}
	req := protocol.Request{Op: protocol.OpCommand, Command: append(abi.Encode(nil, &hdr), body...), Extents: extents}
	if err := r.dev.WriteMessage(req.Append(nil)); err != nil {
		return 0, err
	}
	n, fds, err := r.dev.ReadMessage(r.buf[:])
	if err != nil {
		return 0, err
	}
	protocol.CloseFDs(fds)
	var reply protocol.Reply
	if err := reply.Parse(r.buf[:n]); err != nil {
		return 0, err
	}
	if reply.Error != 0 {
		return 0, syscall.Errno(reply.Error)
	}
	for _, s := range reply.Stores {
		if s.Address == rawAnswer && len(s.Data) >= 4 {
			return uint32(s.Data[0]) | uint32(s.Data[1])<<8 | uint32(s.Data[2])<<16 | uint32(s.Data[3])<<24, nil
		}
	}
	return 0, nil
}

// register registers pages of the memfd that do not exist yet.
func (r *raw) register(start, length uint64) error {
	_, err := r.command(abi.CmdRegMR, abi.Encode(nil, &abi.RegMR{
		Response: rawAnswer, Start: start, HCAVA: start, Length: length, PDHandle: r.pd, AccessFlags: abi.AccessLocalWrite,
	}), 12, protocol.Extent{Start: start, Length: length, Kind: protocol.ExtentOwn, Prot: 3})
	return err
}

// A user who exhausts a limit gets an error that names it. The daemon, its owner and other users go on, and what the
// attacker held is released.
func TestGreedyUser(t *testing.T) {
	harness.Need(t, "prlimit")
	d := harness.Start(t, harness.Options{
		Args: []string{"--mode", "0666"},
		Wrap: []string{"prlimit", "--nofile=8192:8192"}, // whatever this machine's is
	})
	d.NoLeaks(t)
	for _, attack := range []struct {
		name string
		// run allocates until it is refused. It returns a function that releases everything, and the refusal.
		run  func(t *testing.T) (end func(), err error)
		want syscall.Errno
		log  string
	}{
		{"silent_connections", func(t *testing.T) (func(), error) {
			var conns []net.Conn
			end := func() {
				for _, c := range conns {
					c.Close()
				}
			}
			var err error
			as(t, attackerUID, func() {
				for range 6000 {
					var c net.Conn
					if c, err = protocol.Connect(d.Socket); err != nil {
						return
					}
					conns = append(conns, c)
				}
			})
			if err != nil {
				t.Fatalf("connection %d: %v", len(conns), err)
			}
			if now := d.Footprint(t).FDs; now > 4000 {
				t.Errorf("the daemon holds %d descriptors for a user who says nothing", now)
			}
			return end, syscall.EMFILE
		}, syscall.EMFILE, "open files of the daemon"},
		{"processes", func(t *testing.T) (func(), error) {
			var all []*protocol.Session
			var err error
			as(t, attackerUID, func() {
				for err == nil && len(all) < 6000 {
					var s *protocol.Session
					if s, err = protocol.Dial(d.Socket, protocol.Hello{Kind: protocol.KindProcess}); err == nil {
						all = append(all, s)
					}
				}
			})
			return func() {
				for _, s := range all {
					s.Close()
				}
			}, err
		}, syscall.EMFILE, "open files of the daemon"},
		{"windows", func(t *testing.T) (func(), error) {
			var all []*raw
			end := func() {
				for _, r := range all {
					r.close()
				}
			}
			for {
				r, err := newRaw(t, d, attackerUID)
				if err != nil {
					return end, err
				}
				all = append(all, r)
				for n := uint64(1); n <= 256; n++ {
					if err := r.register(n<<30, 4096); err != nil {
						return end, err
					}
				}
			}
		}, syscall.ENOMEM, "mappings of the daemon"},
		{"holes", func(t *testing.T) (func(), error) {
			var info unix.Sysinfo_t
			if err := unix.Sysinfo(&info); err != nil {
				t.Fatal(err)
			}
			var r *raw
			var err error
			// The daemon releases what the previous attack held a little later.
			harness.Poll(minute, func() bool {
				r, err = newRaw(t, d, attackerUID)
				return err == nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return r.close, r.register(1<<36, uint64(info.Totalram)*uint64(info.Unit)/4)
		}, syscall.ENOMEM, "never touched"},
		{"tools", func(t *testing.T) (func(), error) {
			var all []*protocol.Session
			var err error
			before := anonymous(t, d.PID())
			as(t, attackerUID, func() {
				for err == nil && len(all) < 1000 {
					var s *protocol.Session
					if s, err = protocol.Dial(d.Socket, protocol.Hello{Kind: protocol.KindControl}); err == nil {
						all = append(all, s)
						s.WriteMessage([]byte("+" + strings.Repeat(" ", 4000))) // never the last piece
					}
				}
			})
			if now := anonymous(t, d.PID()); now > before+32<<10 {
				t.Errorf("RssAnon went from %d to %d KiB for requests that do not end", before, now)
			}
			return func() {
				for _, s := range all {
					s.Close()
				}
			}, err
		}, syscall.EBUSY, "shares of tools"},
	} {
		t.Run(attack.name, func(t *testing.T) {
			end, err := attack.run(t)
			defer end()
			if !errors.Is(err, attack.want) {
				t.Errorf("ended with %v, want %v", err, attack.want)
			}
			if !harness.Poll(minute, func() bool { return strings.Contains(d.Process.Output(), attack.log) }) {
				t.Errorf("the log does not say %q:\n%s", attack.log, harness.Tail(d.Process.Output(), 10))
			}
			d.Run(t, minute, "ibv_devinfo")
			other := d.ProgramCommand("ibv_devinfo")
			other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: bystanderUID, Gid: bystanderUID}}
			other.Dir = "/"
			harness.Spawn(t, other).OK(t, minute)
			if d.Process.Ended(0) {
				t.Fatalf("the daemon died:\n%s", harness.Tail(d.Process.Output(), 60))
			}
		})
	}
}

// The tools, where root is not the machine's root.
func TestToolsInContainer(t *testing.T) {
	harness.Need(t, "unshare")
	d := harness.Start(t, harness.Options{})
	inside := func(flags []string, args ...string) (string, error) {
		cmd := d.Command(args...)
		cmd.Args = append(append(append([]string{"unshare"}, flags...), cmd.Path), cmd.Args[1:]...)
		path, err := exec.LookPath("unshare")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path = path
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	s := startStream(t, d, 0)
	for name, flags := range map[string][]string{
		"pid namespace":  {"--pid", "--fork", "--mount-proc"},
		"user namespace": {"--user", "--map-root-user"},
	} {
		for _, args := range [][]string{{"stop"}, {"pcap", "-w", "/dev/null"}} {
			out, err := inside(flags, args...)
			if err == nil || !strings.Contains(out, "another "+name) || !strings.Contains(out, "from where the daemon runs") {
				t.Errorf("vrdma %s in another %s: %v, %s, want a refusal that says why and what to do", args[0], name, err, out)
			}
		}
		out, err := inside(flags, "status")
		if err != nil || !strings.Contains(out, "sessions") || strings.Contains(out, fmt.Sprint("pid ", s.client.PID())) {
			t.Errorf("vrdma status in another %s: %v, %s, want the device and no sessions", name, err, out)
		}
	}
	// As under ip netns exec.
	out, err := inside([]string{"--mount", "--net"}, "status")
	if err != nil || !strings.Contains(out, fmt.Sprint("pid ", s.client.PID())) {
		t.Errorf("vrdma status in other network and mount namespaces: %v, %s, want every session", err, out)
	}
	if out, err := inside([]string{"--mount", "--net"}, "stop"); err != nil {
		t.Errorf("vrdma stop in other network and mount namespaces: %v, %s", err, out)
	}
}
