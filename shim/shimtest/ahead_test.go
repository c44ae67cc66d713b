package shimtest

import (
	"encoding/binary"
	"os"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// Commands of the program "ahead"; QUERY_ROUTE is one that the library answers itself if it can.
const (
	cmQueryRoute = 5   // stores the value of an identifier, of a number of ids
	cmdForesee   = 211 // gives that answer ahead; the first time, it gives the mailbox instead
	cmdChange    = 212 // raises the value
	cmdAsked     = 213 // stores how many QUERY_ROUTE there were
	cmdStock     = 214 // adds so many events, all but one of them on the shelf; stores how many GET_EVENT there were
)

// An ahead is what a channel of the fake daemon answers ahead: values of identifiers.
type ahead struct {
	mail  *protocol.Mail
	file  *os.File // nil: the client has it
	value map[uint32]uint64
	base  uint64 // of another channel it is another
	asked uint64

	next, laid uint64 // on the shelf are the events from one to the other
	gets       uint64 // how many GET_EVENT there were
}

func (f *fake) newAhead() *ahead {
	mail, file, err := protocol.NewMail(true)
	if err != nil {
		f.t.Errorf("mailbox: %v", err)
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &ahead{mail: mail, file: file, value: map[uint32]uint64{}, base: uint64(f.nextChannel) << 32}
}

func (a *ahead) close() {
	a.mail.Close()
	if a.file != nil {
		a.file.Close()
	}
}

func (a *ahead) answer(command []byte, reply *protocol.ReplyBuilder, response uint64) {
	le := binary.NativeEndian
	id := le.Uint32(command[16:])
	value := func() []byte { return le.AppendUint64(nil, a.base+a.value[id]) }
	switch le.Uint32(command) {
	case cmQueryRoute:
		a.asked++
		reply.Store(response, value())
	case cmdForesee:
		if a.file == nil {
			reply.Ahead(protocol.Ahead{Command: cmQueryRoute + 1, ID: id, Revision: a.mail.Revision(id), Data: []byte("another")})
			reply.Ahead(protocol.Ahead{Command: cmQueryRoute, ID: id, Key: 9, Revision: a.mail.Revision(id), Data: []byte("nine....")})
			reply.Ahead(protocol.Ahead{Command: cmQueryRoute, ID: id, Revision: a.mail.Revision(id), Data: value()})
		}
	case cmdChange:
		a.mail.Revoke(id)
		a.value[id]++
		reply.Store(response, value())
	case cmdAsked:
		reply.Store(response, le.AppendUint64(nil, a.asked))
	}
}

// stock adds n events to ch, which had none, and puts all but the last on the shelf.
func (a *ahead) stock(ch *eventChannel, n uint64, reply *protocol.ReplyBuilder, response uint64) {
	le := binary.NativeEndian
	a.settle(ch)
	ch.post(n)
	for i := n; i > 1; i-- {
		var r protocol.ReplyBuilder
		r.Reset(nil)
		r.Store(0, le.AppendUint64(nil, i))
		r.Ahead(protocol.Ahead{Command: cmQueryRoute, ID: uint32(i), Revision: a.mail.Revision(uint32(i)), Data: le.AppendUint64(nil, 1000+i)})
		b, err := r.Finish(0)
		if err != nil || !a.mail.Lay(a.laid, b) {
			ch.f.t.Errorf("an event does not fit the shelf: %v", err)
		}
		a.laid++
	}
	a.mail.SetReady(a.laid)
	reply.Store(response, le.AppendUint64(nil, a.gets))
}

// settle counts the events that the client took from the shelf.
func (a *ahead) settle(ch *eventChannel) {
	for ; a.next < a.mail.Taken(); a.next++ {
		ch.take()
	}
}

// get makes ch.take take an event that the client can no longer take.
func (a *ahead) get(ch *eventChannel) {
	a.gets++
	for a.settle(ch); ch.waits() && !a.mail.Claim(a.next); {
		a.settle(ch)
	}
	if ch.waits() {
		a.next++
		a.laid = max(a.laid, a.next)
		a.mail.SetReady(a.laid)
	}
}

// TestAhead: the library does not ask for what the daemon answered ahead, and never uses an outdated answer: not after
// a change, by another thread, in a child, or on another channel with that number.
func TestAhead(t *testing.T) {
	if out := mustRun(t, fakeFor(t, "ahead"), library(t), program(t, "ahead")); out != "" {
		t.Errorf("it printed:\n%s", out)
	}
}
