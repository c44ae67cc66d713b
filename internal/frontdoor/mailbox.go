package frontdoor

import (
	"vrdma/internal/budget"
	"vrdma/internal/protocol"
	"vrdma/internal/uverbs"
)

// A mailbox is what a session has of a protocol.Mail: memory through which a client that is
// awake makes its commands, as long as the loop is awake, too. It belongs to whoever has the
// connection, like the rest of requests. It is open only while that is the loop: what is
// handed over is answered through the connection, and so is what comes after, until the loop
// has the connection again and has served a request on it.
type mailbox struct {
	wanted  bool // the client can use one
	account *budget.Account
	page    *protocol.Mail // nil: it has none
	asked   bool           // the request under way is from there
	open    bool
	served  int
}

// mailAfter is how many commands a client makes before it is given a mailbox: many programs
// open a device to look at it, or a channel for a single connection.
const mailAfter = 24

// mailBill is what a mailbox takes: a page, and its mapping.
var mailBill = budget.Bill{budget.State: protocol.MailSize, budget.Mappings: 1}

// wantsMail is what a session begins with; account is whom a mailbox is charged to, and is
// held as long as the session lives.
func wantsMail(h protocol.Hello, account *budget.Account) mailbox {
	return mailbox{wanted: h.Flags&protocol.HelloMail != 0, account: account}
}

// offer has the goroutine send a mailbox with the answer, if it is time for one; else it is nil.
func (r *requests) offer(answer []byte) rest {
	m := &r.mail
	if m.served++; !m.wanted || m.served < mailAfter {
		return nil
	}
	m.wanted = false
	return func() ([]byte, []uverbs.Handle) {
		if m.account.Charge(mailBill) != nil {
			return answer, nil // it goes without
		}
		page, file, err := protocol.NewMail()
		if err != nil {
			m.account.Refund(mailBill)
			return answer, nil
		}
		m.page = page
		return protocol.WithFD(answer, protocol.FD{Kind: protocol.FDMail}), []uverbs.Handle{file}
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

// attend opens the mailbox. It runs on the loop.
func (r *requests) attend() {
	if m := &r.mail; m.page != nil && !m.open && r.srv.loop.Look(r.fd, postbox{r}) {
		m.open = true
		m.page.Open()
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
		m.account.Refund(mailBill)
	}
}

// A postbox is requests as the loop sees its mailbox: engine.Box.
type postbox struct{ *requests }

// Asked implements engine.Box.
func (p postbox) Asked() bool { return p.mail.page.Asked() }

// Shut implements engine.Box.
func (p postbox) Shut() bool {
	p.mail.open = false
	return p.mail.page.Shut()
}

// Serve implements engine.Line.
func (p postbox) Serve() {
	r := p.requests
	if r.busy.Load() {
		return
	}
	buf := r.srv.scratch()
	r.mail.asked = true
	n, err := r.mail.page.Take(*buf)
	if err != nil {
		r.refuse(err)
		return
	}
	r.run(buf, n)
}
