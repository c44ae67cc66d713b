package server

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/testkit/leak"
)

// A mailer is a client that can use a mailbox.
type mailer struct {
	*client
	mail   *protocol.Mail
	file   *os.File // of mail
	mailed int      // requests that went there
	looks  int      // how long it looks for an answer there
	began  time.Time
}

func newMailer(t testing.TB, s *Server, kind protocol.Kind) *mailer {
	t.Helper()
	return newMailerWith(t, s, kind, protocol.HelloMail)
}

// newMailerWith is newMailer with other flags.
func newMailerWith(t testing.TB, s *Server, kind protocol.Kind, flags uint32) *mailer {
	t.Helper()
	m := &mailer{client: &client{t: t, buf: make([]byte, protocol.MaxMessage)}, looks: 1 << 30, began: time.Now()}
	m.proc = dial(t, s, protocol.Hello{Kind: protocol.KindProcess, Program: "prog"})
	m.dev = dial(t, s, protocol.Hello{Kind: kind, Flags: flags, Token: m.proc.Welcome.Token, Program: "prog"})
	t.Cleanup(func() {
		if m.mail != nil {
			m.mail.Close()
			m.file.Close()
		}
	})
	if kind == protocol.KindUverbs {
		m.ends(legacy(abi.CmdGetContext, &abi.GetContext{Response: respAddr}, nil, 8), 0)
	}
	return m
}

// send runs a command as the shim does.
func (m *mailer) send(command []byte) (r protocol.Reply) {
	m.t.Helper()
	req := (&protocol.Request{Op: protocol.OpCommand, Command: command}).Append(nil)
	asked, here, n := m.mail != nil && m.mail.Ask(req), false, 0
	if asked {
		m.mailed++
		n, here = m.mail.Await(m.looks, m.buf)
	} else if err := m.dev.WriteMessage(req); err != nil {
		m.t.Fatal(err)
	}
	var fds []int
	if !here {
		var err error
		m.dev.SetReadDeadline(time.Now().Add(time.Minute))
		if n, fds, err = m.dev.ReadMessage(m.buf); err != nil {
			m.t.Fatal(err)
		}
	}
	if asked {
		m.mail.End()
	}
	if err := r.Parse(m.buf[:n]); err != nil {
		m.t.Fatal(err)
	}
	for i, fd := range r.FDs {
		if fd.Kind != protocol.FDMail {
			syscall.Close(fds[i])
			continue
		}
		if m.mail != nil {
			m.t.Fatal("a second mailbox")
		}
		m.file = os.NewFile(uintptr(fds[i]), "mail")
		var err error
		if m.mail, err = protocol.OpenMail(m.file); err != nil {
			m.t.Fatal(err)
		}
	}
	return r
}

func (m *mailer) ends(command []byte, want syscall.Errno) {
	m.t.Helper()
	if r := m.send(command); syscall.Errno(r.Error) != want {
		m.t.Fatalf("command %#x: %v, want %v", binary.NativeEndian.Uint32(command), syscall.Errno(r.Error), want)
	}
}

func portCommand(port uint8) []byte {
	return legacy(abi.CmdQueryPort, &abi.QueryPort{Response: respAddr, PortNum: port}, nil, abi.Size[abi.QueryPortResp]())
}

// give runs commands until there is an open mailbox.
func (m *mailer) give() {
	m.t.Helper()
	for m.patient() {
		if m.mail != nil && m.mailed > 0 {
			return
		}
		m.ends(portCommand(1), 0)
	}
	m.t.Fatal("there is no mailbox, or it is never open")
}

// patient reports whether less than a minute has passed. On a slow machine the loop often sleeps between two commands,
// and then mailboxes are shut.
func (m *mailer) patient() bool { return time.Since(m.began) < time.Minute }

// Commands through the mailbox have the same results as others: those that succeed, that fail, that the loop hands
// over, and that create descriptors. The result does not depend on how long the client polls.
func TestMailbox(t *testing.T) {
	s := testServer(t)
	m := newMailer(t, s, protocol.KindUverbs)
	m.give()
	for i := range 500 {
		m.looks = []int{1 << 30, 0, 3}[i%3]
		m.ends(portCommand(1), 0)
		m.ends(portCommand(2), syscall.EINVAL)
		r := m.send(legacy(abi.CmdAllocPD, &abi.AllocPD{Response: respAddr}, nil, 4))
		if r.Error != 0 || len(r.Stores) != 1 {
			t.Fatalf("ALLOC_PD: errno %d, %d stores", r.Error, len(r.Stores))
		}
		p := u32(r.Stores[0].Data, 0)
		if i%5 == 0 {
			m.ends(legacy(abi.CmdRegMR, &abi.RegMR{Response: respAddr, PDHandle: p, Start: 4096, Length: 4096, AccessFlags: 1}, nil, 12), syscall.EFAULT)
		}
		if i%7 == 0 {
			m.ends(legacy(abi.CmdCreateCompChannel, &abi.CreateCompChannel{Response: respAddr}, nil, 4), 0)
		}
		m.ends(legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: p}, nil, 0), 0)
		m.ends(legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: p}, nil, 0), syscall.ENOENT)
	}
}

// An event channel has one as well.
func TestMailboxOfChannel(t *testing.T) {
	s := testServer(t)
	m := newMailer(t, s, protocol.KindRDMACM)
	for i := 0; i < 500 || m.mailed == 0 && m.patient(); i++ {
		r := m.send(ucm(abi.CMCmdCreateID, &abi.CMCreateID{UID: 1, Response: respAddr, PS: 0x106}, 4))
		if r.Error != 0 || len(r.Stores) != 1 {
			t.Fatalf("CREATE_ID: errno %d, %d stores", r.Error, len(r.Stores))
		}
		id := u32(r.Stores[0].Data, 0)
		m.ends(ucm(abi.CMCmdDestroyID, &abi.CMDestroyID{Response: respAddr, ID: id}, 4), 0)
		m.ends(ucm(abi.CMCmdDestroyID, &abi.CMDestroyID{Response: respAddr, ID: id}, 4), syscall.ENOENT)
	}
	if m.mailed == 0 {
		t.Error("nothing went through the mailbox")
	}
}

// TestMailboxTraced: a tool that traces a program sees its commands through the mailbox.
func TestMailboxTraced(t *testing.T) {
	s := testServer(t)
	m := newMailer(t, s, protocol.KindUverbs)
	m.give()
	tr, err := protocol.Trace(s.listeners.list[0].Socket, "")
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	const many = 50
	for range many {
		m.ends(portCommand(1), 0)
	}
	for i := range many {
		r, err := tr.Next()
		if err != nil {
			t.Fatal(err)
		}
		if r.Command != "QUERY_PORT" {
			t.Errorf("record %d: %s, want QUERY_PORT", i, r.Command)
		}
	}
}

// A mailbox is charged, and released when the session has ended. A user above the limit is served without one.
func TestMailboxIsCharged(t *testing.T) {
	unlimited := budget.Bill{}
	for i := range unlimited {
		unlimited[i] = 1 << 40
	}
	ledger := budget.New(budget.Limits{All: unlimited, Others: unlimited, User: unlimited})
	s := testServerWith(t, Config{Budget: ledger})
	files := leak.Descriptors(t)
	m := newMailer(t, s, protocol.KindRDMACM)
	destroy := ucm(abi.CMCmdDestroyID, &abi.CMDestroyID{Response: respAddr, ID: 7}, 4)
	m.ends(destroy, syscall.ENOENT)
	before := ledger.Owner().Used()
	for m.mail == nil {
		m.ends(destroy, syscall.ENOENT)
	}
	if got := ledger.Owner().Used(); got[budget.Mappings] != before[budget.Mappings]+1 {
		t.Errorf("%d mappings are charged, before %d", got[budget.Mappings], before[budget.Mappings])
	}
	m.mail.Close()
	m.file.Close()
	m.mail = nil
	for _, c := range []*protocol.Session{m.dev, m.proc} {
		c.Close()
		for _, f := range c.Files {
			f.Close()
		}
	}
	eventually(t, "nothing is charged any more", func() bool { return ledger.Owner().Used() == budget.Bill{} })
	eventually(t, "its files are closed", func() bool { return leak.Descriptors(t) <= files })
}

// A client that does not ask for a mailbox gets none.
func TestNoMailbox(t *testing.T) {
	s := testServer(t)
	c := open(t, s)
	for range 10 * mailAfter {
		r, fds := c.send(portCommand(1))
		if protocol.CloseFDs(fds); len(fds) != 0 || r.Error != 0 {
			t.Fatalf("%d descriptors, errno %d", len(fds), r.Error)
		}
	}
}

// A client that writes random data into its mailbox, at any time, ends at most itself.
func TestMailboxScribbled(t *testing.T) {
	s := testServer(t)
	other := open(t, s)
	for range 20 {
		rude := newMailer(t, s, protocol.KindUverbs)
		rude.give()
		mem, err := unix.Mmap(int(rude.file.Fd()), 0, protocol.MailSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		rude.dev.SetReadDeadline(time.Now().Add(time.Minute))
		port := (&protocol.Request{Op: protocol.OpCommand, Command: portCommand(1)}).Append(nil)
		for i := range 200 {
			copy(mem[protocol.MailRequest:], port)
			if rand.IntN(3) == 0 {
				for range 8 {
					mem[rand.IntN(protocol.MailSize)] = byte(rand.Uint32())
				}
			}
			binary.NativeEndian.PutUint32(mem[protocol.MailAskedLen:], []uint32{uint32(len(port)), 0, 1 << 31, uint32(rand.IntN(4096))}[rand.IntN(4)])
			binary.NativeEndian.PutUint32(mem[protocol.MailState:], uint32(rand.IntN(32)))
			if i%10 == 0 {
				if err := rude.dev.WriteMessage(port); err != nil {
					break
				}
				if _, fds, err := rude.dev.ReadMessage(rude.buf); err != nil {
					if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
						t.Fatal(err)
					}
					break
				} else {
					protocol.CloseFDs(fds)
				}
				other.must(portCommand(1))
			}
		}
		if err := unix.Fallocate(int(rude.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, protocol.MailSize); err != nil {
			t.Fatal(err)
		}
		if os.Truncate("/proc/self/fd/"+strconv.Itoa(int(rude.file.Fd())), 0) == nil {
			t.Fatal("the mailbox can be truncated")
		}
		unix.Munmap(mem)
		rude.dev.Close()
		rude.proc.Close()
	}
	other.must(portCommand(1))
}
