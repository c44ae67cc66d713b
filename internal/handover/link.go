// Package handover is the conversation between two daemons in a live upgrade: the old daemon hands its state and its
// descriptors over to the next one.
//
//	next                                  old
//	 │ Hello: formats that it reads       │
//	 ├────────────────────────────────────▶
//	 ◀─ Offer: sockets, locks ────────────┤  serves programs, but makes no changes of declared objects
//	 │  opens store, NICs, listeners      │
//	 ├─ Ready ────────────────────────────▶
//	 ◀─ State: sessions, memory, queues ──┤  stands still
//	 │  restores everything               │
//	 ├─ Restored ─────────────────────────▶
//	 ◀─ Go ───────────────────────────────┤  ends without closing anything
//	 │  serves programs                   │
//
// The connection is a stream socket pair. If it ends before Go, the old daemon continues as if nothing had happened, and
// the next one exits. Go is the only point of no return: after it the old daemon never touches a session again, and
// before it the next one has not changed anything that the two share.
//
// The package moves messages and descriptors. It knows no content: that is package daemon's and package server's.
package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/state"
)

// A Kind is what a message is.
type Kind uint32

// The messages, in the order in which they are sent.
const (
	Hello Kind = iota + 1
	Offer
	Ready
	State
	Restored
	Go
	// Refused ends the conversation, with the reason.
	Refused
)

var kindNames = map[Kind]string{Hello: "hello", Offer: "offer", Ready: "ready", State: "state", Restored: "restored", Go: "go", Refused: "refused"}

func (k Kind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return fmt.Sprintf("message of kind %d", uint32(k))
}

const (
	// head is the size of a message's head: kind, number of descriptors, bytes.
	head = 4 + 4 + 8
	// filesAtOnce is how many descriptors one sendmsg carries. The kernel's limit is 253.
	filesAtOnce = 128
	// mostBytes and mostFiles bound a message.
	mostBytes = 1 << 30
	mostFiles = 1 << 20
)

// A Link is one end of the conversation.
type Link struct{ conn *net.UnixConn }

// Pair returns the two ends. The second is passed to the other daemon, which calls Open with it.
func Pair() (*Link, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("a connection between two daemons: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "handover")
	l, err := Open(os.NewFile(uintptr(fds[0]), "handover"))
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return l, theirs, nil
}

// Open makes a link of one end, which it closes.
func Open(f *os.File) (*Link, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("a connection between two daemons: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("a connection between two daemons: the descriptor is no unix socket")
	}
	return &Link{u}, nil
}

// Close ends the conversation.
func (l *Link) Close() error { return l.conn.Close() }

// SetDeadline bounds the messages that follow.
func (l *Link) SetDeadline(t time.Time) error { return l.conn.SetDeadline(t) }

// Send sends a message with descriptors, which stay open here. A nil v is an empty message.
func (l *Link) Send(k Kind, v any, files []int) error {
	var body []byte
	var err error
	if v != nil {
		if body, err = state.Marshal(v); err != nil {
			return fmt.Errorf("%v: %w", k, err)
		}
	}
	b := make([]byte, head, head+len(body))
	binary.LittleEndian.PutUint32(b, uint32(k))
	binary.LittleEndian.PutUint32(b[4:], uint32(len(files)))
	binary.LittleEndian.PutUint64(b[8:], uint64(len(body)))
	if _, err := l.conn.Write(append(b, body...)); err != nil {
		return fmt.Errorf("%v: %w", k, err)
	}
	for len(files) > 0 {
		n := min(len(files), filesAtOnce)
		if _, _, err := l.conn.WriteMsgUnix([]byte{0}, unix.UnixRights(files[:n]...), nil); err != nil {
			return fmt.Errorf("%v: %d descriptors: %w", k, len(files), err)
		}
		files = files[n:]
	}
	return nil
}

// Refuse ends the conversation with a reason.
func (l *Link) Refuse(why error) { l.Send(Refused, why.Error(), nil) } // the other daemon may be gone

// A Refusal is the reason why the other daemon ended the conversation.
type Refusal struct{ Why string }

func (r *Refusal) Error() string { return r.Why }

// Receive receives a message of the kind want and decodes it into v, unless that is nil. The caller owns the files.
func (l *Link) Receive(want Kind, v any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			CloseAll(files)
			files = nil
		}
	}()
	var b [head]byte
	if _, err := io.ReadFull(l.conn, b[:]); err != nil {
		return nil, fmt.Errorf("waiting for %v: %w", want, err)
	}
	k, num, size := Kind(binary.LittleEndian.Uint32(b[:])), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])
	if num > mostFiles || size > mostBytes {
		return nil, fmt.Errorf("%v with %d descriptors and %d bytes", k, num, size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(l.conn, body); err != nil {
		return nil, fmt.Errorf("%v: %w", k, err)
	}
	for uint32(len(files)) < num {
		more, err := l.receiveFiles()
		files = append(files, more...)
		if err != nil {
			return files, fmt.Errorf("%v: descriptor %d of %d: %w", k, len(files), num, err)
		}
	}
	if k == Refused {
		var why string
		if err := state.Unmarshal(body, &why); err != nil {
			why = "without a reason"
		}
		return files, &Refusal{why}
	}
	if k != want {
		return files, fmt.Errorf("%v instead of %v", k, want)
	}
	if v != nil {
		if err := state.Unmarshal(body, v); err != nil {
			return files, fmt.Errorf("%v: %w", k, err)
		}
	}
	return files, nil
}

// receiveFiles receives the descriptors of one sendmsg.
func (l *Link) receiveFiles() (files []*os.File, err error) {
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4*filesAtOnce))
	_, n, flags, _, err := l.conn.ReadMsgUnix(b[:], oob)
	if err != nil {
		return nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "inherited"))
		}
	}
	switch {
	case flags&unix.MSG_CTRUNC != 0:
		return files, errors.New("the limit of open files is reached (ulimit -n)")
	case len(files) == 0:
		return nil, io.ErrUnexpectedEOF
	}
	return files, nil
}

// CloseAll closes files.
func CloseAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
