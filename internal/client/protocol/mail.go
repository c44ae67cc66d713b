package protocol

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A Mail is a mailbox: a page that a client shares with the daemon for requests and their answers while both are awake.
// protocol.h explains its use, and why no request is lost between the mailbox and the socket. The daemon's side:
//
//	shut ── Open ──▶ open ── the client asks ──▶ Asked ── Take ──▶ being answered
//	  ▲               │ ▲                                              │
//	  └──── Shut ─────┘ └─────────────────── Answer ───────────────────┤
//	  └────────────────────── Refer: it comes through the socket ──────┘
//
// The client can write anything there at any time. The daemon reads each word once, and copies a request before it uses it.
type Mail struct{ mem []byte }

// NewMail returns a closed mailbox and the file that the client maps; with ahead, revisions follow it. The caller closes both.
// The file is sealed, because truncating it would cause SIGBUS in the daemon.
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

// Close unmaps the mailbox.
func (m *Mail) Close() { unix.Munmap(m.mem) }

// Open tells the client that the daemon polls the mailbox.
func (m *Mail) Open() { m.word(MailState).Or(MailOpen) }

// Shut ends that. It reports whether the mailbox has an earlier request.
func (m *Mail) Shut() bool { return waits(m.word(MailState).And(^uint32(MailOpen))) }

// Asked reports whether the mailbox has a request.
func (m *Mail) Asked() bool { return waits(m.word(MailState).Load()) }

func waits(state uint32) bool { return state&(MailAsked|MailAnswered|MailSent) == MailAsked }

// Take copies the request into buf, which is large enough for any.
func (m *Mail) Take(buf []byte) (int, error) {
	n := m.word(MailAskedLen).Load()
	if n > MailReply-MailRequest {
		return 0, malformed("a request of %d bytes in a mailbox, at most %d fit", n, MailReply-MailRequest)
	}
	return copy(buf, m.mem[MailRequest:MailRequest+n]), nil
}

// Answer stores the answer to the request. If it returns false, the client waits at the socket, and the answer must be sent there.
func (m *Mail) Answer(b []byte) bool {
	if len(b) > MailSize-MailReply {
		m.word(MailState).Or(MailSent)
		return false
	}
	copy(m.mem[MailReply:MailSize], b)
	m.word(MailReplyLen).Store(uint32(len(b)))
	return m.word(MailState).Or(MailAnswered)&MailAsleep == 0
}

// Refer closes the mailbox and tells the client that the answer will come through the socket.
func (m *Mail) Refer() {
	m.word(MailState).Or(MailSent)
	m.word(MailState).And(^uint32(MailOpen))
}

// Left reports whether the mailbox has sure commands (protocol.h).
func (m *Mail) Left() bool { return m.word(MailLeftLen).Load() != 0 }

// TakeLeft moves the sure commands from the mailbox into buf, which has MaxLeft bytes, and returns their size.
func (m *Mail) TakeLeft(buf []byte) int {
	for range 4 { // a client adds commands at most once meanwhile
		n := m.word(MailLeftLen).Load()
		if n > MaxLeft { // the client wrote an invalid length
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

// MaxLeft is the size of a mailbox's area for sure commands.
const MaxLeft = MailReply - MailLeft

// The rest of this file is the side of a Go client. The interposer's is in shim/messages.c.

// Ask stores a request; it returns false if the request must be sent through the socket.
func (m *Mail) Ask(req []byte) bool {
	if len(req) > MailLeft-MailRequest || m.word(MailState).Load() != MailOpen {
		return false
	}
	copy(m.mem[MailRequest:], req)
	m.word(MailAskedLen).Store(uint32(len(req)))
	return m.word(MailState).CompareAndSwap(MailOpen, MailOpen|MailAsked)
}

// Await polls for the answer up to looks times, and copies it into buf. If it returns false, the answer comes through the socket.
// The caller calls End afterwards.
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

// End frees the mailbox for the next request.
func (m *Mail) End() { m.word(MailState).And(MailOpen) }

// word returns the word at off, which the other side can change at any time; long returns one of 8 bytes.
func (m *Mail) word(off int) *atomic.Uint32 { return Shared32(m.mem, off) }
func (m *Mail) long(off int) *atomic.Uint64 { return Shared64(m.mem, off) }

// Leave stores a sure command; it returns false if the command must be sent as a request.
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
