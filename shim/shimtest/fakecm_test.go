package shimtest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// Commands of rdma_cm that the library looks at; the others are those of fake_test.go.
const (
	cmGetEvent  = 12
	cmSetOption = 14
	cmMigrateID = 18
	cmdOption   = 210 // stores the length of the last option and its first eight bytes
)

// fakeFor is a fake daemon for one of the programs: only "channel" and "ahead" have the rdma_cm device,
// which the others do not expect.
func fakeFor(t *testing.T, name string) *fake {
	t.Helper()
	f := startFake(t)
	if name == "channel" || name == "ahead" {
		if err := os.WriteFile(filepath.Join(f.socket+".d", "sys/class/misc/rdma_cm/dev"), []byte("10:122\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// eventChannel is an opened rdma_cm: it counts events, and its descriptor is readable while there are any.
type eventChannel struct {
	f      *fake
	conn   *protocol.Conn
	option []byte

	mu     sync.Mutex
	events uint64
	ours   int // end of the socket pair
	theirs int

	ahead *ahead // nil: none
}

func (f *fake) serveChannel(c *protocol.Conn, buf []byte, w protocol.Welcome, hello protocol.Hello) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.t.Errorf("socketpair: %v", err)
		return
	}
	ch := &eventChannel{f: f, conn: c, ours: pair[0], theirs: pair[1]}
	if hello.Flags&protocol.HelloAhead != 0 {
		ch.ahead = f.newAhead()
		defer ch.ahead.close()
	}
	defer func() {
		ch.mu.Lock()
		defer ch.mu.Unlock()
		unix.Close(ch.ours)
		unix.Close(ch.theirs)
		ch.ours, ch.theirs = -1, -1
	}()
	f.mu.Lock()
	f.nextChannel++
	w.ID, w.NumFDs, w.RdevMajor, w.RdevMinor = 1000+f.nextChannel, 1, 10, 122
	f.mu.Unlock()
	if err := c.WriteMessage(w.Append(nil), ch.theirs); err != nil {
		return
	}
	f.answerAll(c, buf, ch.answer)
}

// post adds events.
func (ch *eventChannel) post(n uint64) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.events == 0 && n > 0 && ch.ours >= 0 {
		unix.Write(ch.ours, []byte{1})
	}
	ch.events += n
}

func (ch *eventChannel) waits() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.events > 0
}

// take takes an event; 0 if there is none.
func (ch *eventChannel) take() uint64 {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	n := ch.events
	if n == 1 {
		var b [1]byte
		unix.Recvfrom(ch.theirs, b[:], unix.MSG_DONTWAIT)
	}
	if n > 0 {
		ch.events--
	}
	return n
}

func (ch *eventChannel) answer(q *protocol.Request) bool {
	le := binary.NativeEndian
	b := q.Command
	response, arg := le.Uint64(b[8:]), uint64(0)
	if len(b) >= 24 {
		arg = le.Uint64(b[16:])
	}
	var reply protocol.ReplyBuilder
	reply.Reset(nil)
	var errno int32
	switch le.Uint32(b) {
	case cmdForesee, cmdChange, cmdAsked, cmQueryRoute:
		ch.ahead.answer(b, &reply, response)
	case cmdStock:
		ch.ahead.stock(ch, arg, &reply, response)
	case cmGetEvent:
		if ch.ahead != nil {
			ch.ahead.get(ch)
		}
		if n := ch.take(); n > 0 {
			reply.Store(response, le.AppendUint64(nil, n))
		} else {
			errno = int32(unix.EAGAIN)
		}
	case cmSetOption:
		ch.option = append([]byte(nil), b[32:]...)
	case cmMigrateID:
		reply.Store(response, le.AppendUint64(nil, uint64(le.Uint32(b[20:]))))
	case cmdOption:
		out := le.AppendUint64(nil, uint64(len(ch.option)))
		reply.Store(response, append(out, append(ch.option, make([]byte, 8)...)[:8]...))
	case cmdEcho:
		reply.Store(response, le.AppendUint64(nil, arg+1))
	case cmdFail:
		errno = int32(arg)
	case cmdEvent:
		ch.post(arg)
	case cmdSlow: // an event, later
		go func() {
			time.Sleep(time.Duration(arg) * time.Millisecond)
			ch.post(1)
		}()
	case cmdDie:
		go ch.f.die()
		return false
	default:
		errno = int32(unix.EINVAL)
	}
	out, err := reply.Finish(errno)
	if err != nil {
		return false
	}
	if le.Uint32(b) == cmdForesee && ch.ahead.file != nil {
		f := ch.ahead.file
		ch.ahead.file = nil
		defer f.Close()
		return ch.conn.WriteMessage(protocol.WithFD(out, protocol.FD{Kind: protocol.FDMail, ID: protocol.MailAhead}), int(f.Fd())) == nil
	}
	return ch.conn.WriteMessage(out) == nil
}
