package vm

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// A link is the connection to the agent. The loop sends events through it, so send never blocks: a goroutine writes what the
// socket does not accept at once.
type link struct {
	conn *net.UnixConn

	mu     sync.Mutex
	room   sync.Cond // the queue has become short, or the link has ended
	queue  []byte
	spare  []byte
	busy   bool // the goroutine is writing
	hurry  bool // no caller waits: a live upgrade waits for them
	held   bool // everything waits in the queue
	closed bool
}

const (
	// longQueue is the queue length above which callers that can wait do so.
	longQueue = 1 << 20
	// mostQueue is the maximum queue length. A guest that does not read is disconnected.
	mostQueue = 32 << 20
)

func newLink(u *net.UnixConn) *link {
	l := &link{conn: u}
	l.room.L = &l.mu
	return l
}

// send sends a frame without blocking. The frame is lost if the link has ended.
func (l *link) send(k vmproto.Kind, id uint32, body ...[]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(k, id, body...)
}

// sendLater is send for callers that can wait for a slow link.
func (l *link) sendLater(k vmproto.Kind, id uint32, body ...[]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) > longQueue && !l.closed && !l.hurry {
		l.room.Wait()
	}
	l.put(k, id, body...)
}

// behind reports whether the queue is long.
func (l *link) behind() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue) > longQueue
}

// put writes a frame or appends it to the queue. The caller holds mu.
func (l *link) put(k vmproto.Kind, id uint32, body ...[]byte) {
	if !l.closed {
		before := len(l.queue)
		l.queue = vmproto.Append(l.queue, k, id, body...)
		l.advance(before)
	}
}

// putRaw is put for an encoded frame.
func (l *link) putRaw(b []byte) {
	if !l.closed {
		before := len(l.queue)
		l.queue = append(l.queue, b...)
		l.advance(before)
	}
}

// advance starts to write the queue, which had before bytes before.
func (l *link) advance(before int) {
	if before == 0 && !l.busy && !l.held {
		if n := l.try(l.queue); n == len(l.queue) {
			l.queue = l.queue[:0]
			return
		} else if n > 0 {
			l.queue = append(l.queue[:0], l.queue[n:]...)
		}
	}
	if len(l.queue) > mostQueue {
		l.end()
		return
	}
	if !l.busy && !l.held {
		l.busy = true
		go l.write()
	}
}

// try writes as much as the socket accepts now. The caller holds mu.
func (l *link) try(b []byte) (n int) {
	raw, err := l.conn.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Control(func(fd uintptr) {
		n, err = unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		l.end()
	}
	return max(n, 0)
}

// write writes the queue until it is empty.
func (l *link) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) > 0 && !l.closed && !l.held {
		b := l.queue
		l.queue = l.spare[:0]
		l.mu.Unlock()
		n, err := l.conn.Write(b)
		l.mu.Lock()
		if errors.Is(err, os.ErrDeadlineExceeded) && !l.closed { // hold
			l.queue = slices.Concat(b[n:], l.queue)
			err = nil
		}
		if l.spare = b[:0]; cap(b) > longQueue {
			l.spare = nil
		}
		if err != nil {
			l.end()
		}
		l.room.Broadcast()
	}
	l.busy = false
}

// rush makes callers wait no more, until resume.
func (l *link) rush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hurry = true
	l.room.Broadcast()
}

// hold makes everything that is sent wait in the queue, until resume. It fails if the goroutine does not stop before ctx ends.
func (l *link) hold(ctx context.Context) error {
	l.rush()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = true
	for l.busy && !l.closed {
		l.conn.SetWriteDeadline(time.Unix(1, 0))
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			l.resume()
			l.mu.Lock()
			return errors.New("the line to a virtual machine does not stop")
		case <-time.After(20 * time.Microsecond):
		}
		l.mu.Lock()
	}
	return nil
}

// resume reverts rush and hold.
func (l *link) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hurry = false; l.closed || !l.held {
		return
	}
	l.held = false
	l.conn.SetWriteDeadline(time.Time{})
	if len(l.queue) > 0 && !l.busy {
		l.busy = true
		go l.write()
	}
}

// unsent returns a copy of the queue of a held link.
func (l *link) unsent() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.queue)
}

// close ends the link.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}

func (l *link) end() {
	if !l.closed {
		l.closed = true
		l.queue = nil
		l.conn.Close()
		l.room.Broadcast()
	}
}
