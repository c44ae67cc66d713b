package server

import (
	"os"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/uverbs"
)

// A mailbox is a session's protocol.Mail: memory through which a client makes its commands while both
// the client and the loop are awake. Like the rest of requests it belongs to the loop or to the
// session's goroutine, and it is open only while the loop has it. Requests that are handed over are
// answered through the connection. So are the next ones, until the loop has the connection again and
// has served a request on it.
type mailbox struct {
	wanted  bool // the client supports one, and has none yet
	ahead   bool // the client supports answers ahead
	account *budget.Account
	page    *protocol.Mail // nil: there is none
	file    *os.File       // its memory, for the next daemon
	asked   bool           // the request under way came through it
	open    bool
	served  int
}

// mailAfter is the number of commands after which a client gets a mailbox: many programs open a
// device only to query it, or a channel for a single connection.
const mailAfter = 24

// bill is what a mailbox costs: its pages, a mapping and a descriptor.
func (m *mailbox) bill() budget.Bill {
	if m.ahead {
		return budget.Bill{budget.State: protocol.AheadSize, budget.Mappings: 1, budget.Files: 1}
	}
	return budget.Bill{budget.State: protocol.MailSize, budget.Mappings: 1, budget.Files: 1}
}

// A farseer is a handler that gives its client answers ahead of the questions. foresee sets the page
// for them, until it is called with nil. It runs on the loop.
type farseer interface {
	foresee(page *protocol.Mail)
}

// wantsMail returns the mailbox of a new session. It is charged to account, which the session holds.
func wantsMail(h protocol.Hello, account *budget.Account) mailbox {
	return mailbox{
		wanted: h.Flags&protocol.HelloMail != 0, ahead: h.Kind == protocol.KindRDMACM && h.Flags&protocol.HelloAhead != 0, account: account,
	}
}

// offer returns the part that sends a mailbox with the answer, if it is time for one; else nil.
func (r *requests) offer(answer []byte) rest {
	m := &r.mail
	if m.served++; !m.wanted || m.served < mailAfter {
		return nil
	}
	m.wanted = false
	return func() ([]byte, []uverbs.Handle) {
		if m.account.Charge(m.bill()) != nil {
			return answer, nil // without a mailbox
		}
		page, file, err := protocol.NewMail(m.ahead)
		if err == nil {
			if m.file, err = duplicate(file); err != nil {
				page.Close()
				file.Close()
			}
		}
		if err != nil {
			m.account.Refund(m.bill())
			return answer, nil
		}
		m.page = page
		fd := protocol.FD{Kind: protocol.FDMail}
		if m.ahead {
			fd.ID = protocol.MailAhead
		}
		return protocol.WithFD(answer, fd), []uverbs.Handle{file}
	}
}

// drop puts an answer into the mailbox, if the request came through it. It returns false if the answer
// has to be sent.
func (r *requests) drop(answer []byte) bool {
	if !r.mail.asked {
		return false
	}
	r.mail.asked = false
	return r.mail.page.Answer(answer)
}

// early runs the sure commands in the mailbox. It runs on the loop.
func (r *requests) early() {
	page := r.mail.page
	if page == nil || !page.Left() {
		return
	}
	b := r.srv.left[:]
	b = b[:page.TakeLeft(b)]
	for range r.of.early(b) {
		r.due() // they count for the rate limit, and delay the next request
	}
}

// attend opens the mailbox. It runs on the loop.
func (r *requests) attend() {
	if m := &r.mail; m.page != nil && !m.open && !r.srv.paused && r.srv.loop.Look(r.fd, postbox{r}) {
		m.open = true
		m.page.Open()
		if m.ahead {
			r.lend(m.page)
		}
	}
}

// lend gives the handler a page for answers ahead. It runs on the loop.
func (r *requests) lend(page *protocol.Mail) {
	if f, ok := r.of.(farseer); ok {
		f.foresee(page)
	}
}

// shutMail shuts the mailbox when the connection is handed over. It runs on the loop.
func (r *requests) shutMail() {
	if m := &r.mail; m.page != nil {
		r.srv.loop.Leave(r.fd)
		if m.asked {
			m.page.Refer()
		} else {
			m.page.Shut()
		}
		m.open, m.asked = false, false
	}
}

// duplicate returns another descriptor of a file.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// closeMail frees the mailbox, which the loop does not read any more.
func (r *requests) closeMail() {
	if m := &r.mail; m.page != nil {
		m.page.Close()
		m.file.Close()
		m.page, m.file = nil, nil
		m.account.Refund(m.bill())
	}
}

// A postbox is the mailbox of requests for the loop: it implements engine.Mailbox.
type postbox struct{ *requests }

// Asked implements engine.Mailbox.
func (p postbox) Asked() bool { return p.mail.page.Asked() }

// Shut implements engine.Mailbox. It also reports sure commands in the mailbox, which have to be
// served like a request.
func (p postbox) Shut() bool {
	p.mail.open = false
	asked := p.mail.page.Shut()
	return p.mail.page.Left() || asked
}

// Serve implements engine.Handler.
func (p postbox) Serve() {
	r := p.requests
	if r.busy.Load() || r.srv.paused {
		return
	}
	p.serve()
}

// serve is Serve, also while the loop reads no requests.
func (p postbox) serve() {
	r := p.requests
	buf := r.srv.scratch()
	if r.early(); !r.mail.page.Asked() {
		return
	}
	r.mail.asked = true
	n, err := r.mail.page.Take(*buf)
	if err != nil {
		r.refuse(err)
		return
	}
	r.run(buf, n)
}
