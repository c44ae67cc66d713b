package server

import (
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/uverbs"
)

// A mailbox is what a session has of a protocol.Mail: memory through which a client that is
// awake makes its commands, as long as the loop is awake, too. It belongs to whoever has the
// connection, like the rest of requests. It is open only while that is the loop: what is
// handed over is answered through the connection, and so is what comes after, until the loop
// has the connection again and has served a request on it.
type mailbox struct {
	wanted  bool // the client can use one
	ahead   bool // and answers ahead
	account *budget.Account
	page    *protocol.Mail // nil: it has none
	asked   bool           // the request under way is from there
	open    bool
	served  int
}

// mailAfter is how many commands a client makes before it is given a mailbox: many programs
// open a device to look at it, or a channel for a single connection.
const mailAfter = 24

// bill is what a mailbox takes: its pages, and a mapping.
func (m *mailbox) bill() budget.Bill {
	if m.ahead {
		return budget.Bill{budget.State: protocol.AheadSize, budget.Mappings: 1}
	}
	return budget.Bill{budget.State: protocol.MailSize, budget.Mappings: 1}
}

// A farseer is a handler that tells its client ahead what it will ask. foresee has it use page
// for that, which is lent until it is nil. It runs on the loop.
type farseer interface {
	foresee(page *protocol.Mail)
}

// wantsMail is what a session begins with; account is whom a mailbox is charged to, and is
// held as long as the session lives.
func wantsMail(h protocol.Hello, account *budget.Account) mailbox {
	return mailbox{
		wanted: h.Flags&protocol.HelloMail != 0, ahead: h.Kind == protocol.KindRDMACM && h.Flags&protocol.HelloAhead != 0, account: account,
	}
}

// offer has the goroutine send a mailbox with the answer, if it is time for one; else it is nil.
func (r *requests) offer(answer []byte) rest {
	m := &r.mail
	if m.served++; !m.wanted || m.served < mailAfter {
		return nil
	}
	m.wanted = false
	return func() ([]byte, []uverbs.Handle) {
		if m.account.Charge(m.bill()) != nil {
			return answer, nil // it goes without
		}
		page, file, err := protocol.NewMail(m.ahead)
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

// drop puts an answer into the mailbox, if that is where the request was; false: it has to be
// sent.
func (r *requests) drop(answer []byte) bool {
	if !r.mail.asked {
		return false
	}
	r.mail.asked = false
	return r.mail.page.Answer(answer)
}

// early runs the sure commands that lie in the mailbox. It runs on the loop.
func (r *requests) early() {
	page := r.mail.page
	if page == nil || !page.Left() {
		return
	}
	b := r.srv.left[:]
	b = b[:page.TakeLeft(b)]
	for range r.of.early(b) {
		r.due() // they count: what follows them is held up
	}
}

// attend opens the mailbox. It runs on the loop.
func (r *requests) attend() {
	if m := &r.mail; m.page != nil && !m.open && r.srv.loop.Look(r.fd, postbox{r}) {
		m.open = true
		m.page.Open()
		if m.ahead {
			r.lend(m.page)
		}
	}
}

// lend has the handler use page for answers ahead. It runs on the loop.
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

// closeMail frees the mailbox, into which nobody looks any more.
func (r *requests) closeMail() {
	if m := &r.mail; m.page != nil {
		m.page.Close()
		m.page = nil
		m.account.Refund(m.bill())
	}
}

// A postbox is requests as the loop sees its mailbox: engine.Box.
type postbox struct{ *requests }

// Asked implements engine.Box.
func (p postbox) Asked() bool { return p.mail.page.Asked() }

// Shut implements engine.Box. Commands that were left are as good a reason to be served as a request.
func (p postbox) Shut() bool {
	p.mail.open = false
	asked := p.mail.page.Shut()
	return p.mail.page.Left() || asked
}

// Serve implements engine.Line.
func (p postbox) Serve() {
	r := p.requests
	if r.busy.Load() {
		return
	}
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
