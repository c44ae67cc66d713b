package protocol

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A Mail is a mailbox: a page that a client shares with the daemon, for its requests and their
// answers while both are awake. protocol.h says how it is used, and why no request is lost
// between the mailbox and the socket. The daemon's side of it:
//
//	shut ── Open ──▶ open ── the client asks ──▶ Asked ── Take ──▶ being answered
//	  ▲               │ ▲                                              │
//	  └──── Shut ─────┘ └─────────────────── Answer ───────────────────┤
//	  └────────────────────── Refer: it comes through the socket ──────┘
//
// The client can write anything there at any time. Each word is read once, and a request is
// copied before anybody looks at it.
type Mail struct{ mem []byte }

// NewMail makes a mailbox, shut, and the file that the client maps; with ahead, it has revisions
// behind it. The caller closes both. The file is sealed: a client that truncates it would give
// us SIGBUS.
func NewMail(ahead bool) (*Mail, *os.File, error) {
	size := int64(MailSize)
	if ahead {
		size = AheadSize
	}
	fd, err := unix.MemfdCreate("vrdma-mail", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("memfd for a mailbox: %w", err)
	}
	f := os.NewFile(uintptr(fd), "vrdma-mail")
	if err = unix.Ftruncate(fd, size); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	var m *Mail
	if err == nil {
		m, err = OpenMail(f)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("memfd for a mailbox: %w", err)
	}
	return m, f, nil
}

// OpenMail maps the mailbox in f.
func OpenMail(f *os.File) (*Mail, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := MailSize
	if st.Size() >= AheadSize {
		size = AheadSize
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &Mail{mem}, nil
}

// Close unmaps it.
func (m *Mail) Close() { unix.Munmap(m.mem) }

// Open tells the client that the daemon looks here.
func (m *Mail) Open() { m.word(MailState).Or(MailOpen) }

// Shut ends that. It reports whether there is a request that came before.
func (m *Mail) Shut() bool { return waits(m.word(MailState).And(^uint32(MailOpen))) }

// Asked reports whether there is a request.
func (m *Mail) Asked() bool { return waits(m.word(MailState).Load()) }

func waits(state uint32) bool { return state&(MailAsked|MailAnswered|MailSent) == MailAsked }

// Take copies the request into buf, which has room for any.
func (m *Mail) Take(buf []byte) (int, error) {
	n := m.word(MailAskedLen).Load()
	if n > MailReply-MailRequest {
		return 0, malformed("a request of %d bytes in a mailbox, at most %d fit", n, MailReply-MailRequest)
	}
	return copy(buf, m.mem[MailRequest:MailRequest+n]), nil
}

// Answer answers the request. If it returns false the client waits at the socket, where the
// answer has to be sent.
func (m *Mail) Answer(b []byte) bool {
	if len(b) > MailSize-MailReply {
		m.word(MailState).Or(MailSent)
		return false
	}
	copy(m.mem[MailReply:MailSize], b)
	m.word(MailReplyLen).Store(uint32(len(b)))
	return m.word(MailState).Or(MailAnswered)&MailAsleep == 0
}

// Refer shuts the mailbox and tells the client that an answer will come through the socket.
func (m *Mail) Refer() {
	m.word(MailState).Or(MailSent)
	m.word(MailState).And(^uint32(MailOpen))
}

// Left reports whether sure commands lie here.
func (m *Mail) Left() bool { return m.word(MailLeftLen).Load() != 0 }

// TakeLeft copies the sure commands that lie here into buf, which has room for MaxLeft bytes, and
// returns how many bytes they are. They do not lie here any more.
func (m *Mail) TakeLeft(buf []byte) int {
	for range 4 { // a client that leaves more meanwhile does so once
		n := m.word(MailLeftLen).Load()
		if n > MaxLeft { // it wrote that itself
			m.word(MailLeftLen).Store(0)
			return 0
		}
		copy(buf, m.mem[MailLeft:MailLeft+n])
		if m.word(MailLeftLen).CompareAndSwap(n, 0) {
			return int(n)
		}
	}
	return 0
}

// MaxLeft is how many bytes of sure commands a mailbox holds.
const MaxLeft = MailReply - MailLeft

// What follows is the client's side, as a client in Go has it. The shim's is in
// shim/messages.c.

// Ask leaves a request; false: it has to be sent.
func (m *Mail) Ask(req []byte) bool {
	if len(req) > MailLeft-MailRequest || m.word(MailState).Load() != MailOpen {
		return false
	}
	copy(m.mem[MailRequest:], req)
	m.word(MailAskedLen).Store(uint32(len(req)))
	return m.word(MailState).CompareAndSwap(MailOpen, MailOpen|MailAsked)
}

// Await looks for the answer, so many times, and copies it into buf. If it returns false, the
// answer comes through the socket. End has to follow.
func (m *Mail) Await(looks int, buf []byte) (int, bool) {
	state := m.word(MailState).Load()
	for ; looks > 0 && state&(MailAnswered|MailSent) == 0; looks-- {
		runtime.Gosched()
		state = m.word(MailState).Load()
	}
	if state&(MailAnswered|MailSent) == 0 {
		state = m.word(MailState).Or(MailAsleep)
	}
	if state&MailAnswered == 0 {
		return 0, false
	}
	n := min(m.word(MailReplyLen).Load(), MailSize-MailReply)
	return copy(buf, m.mem[MailReply:MailReply+n]), true
}

// End makes room for the next request.
func (m *Mail) End() { m.word(MailState).And(MailOpen) }

// word returns the word at off, which the other side changes at any time; long is that of 8 bytes.
func (m *Mail) word(off int) *atomic.Uint32 { return Shared32(m.mem, off) }
func (m *Mail) long(off int) *atomic.Uint64 { return Shared64(m.mem, off) }

// Leave leaves a sure command; false: it has to be asked.
func (m *Mail) Leave(command []byte) bool {
	if m.word(MailState).Load() != MailOpen {
		return false
	}
	size := uint32(len(command))
	for {
		n := m.word(MailLeftLen).Load()
		if n > MaxLeft || size > MaxLeft-n {
			return false
		}
		copy(m.mem[MailLeft+n:MailReply], command)
		if !m.word(MailLeftLen).CompareAndSwap(n, n+size) {
			continue
		}
		return m.word(MailState).Load()&MailOpen != 0 || !m.word(MailLeftLen).CompareAndSwap(n+size, n)
	}
}
