package shimtest

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// mailAfter is how many commands are sent before the fake daemon hands out a mailbox.
const mailAfter = 5

// reply answers the current request on the path that it used, and sometimes on the other.
func (d *device) reply(b []byte, fds ...int) error {
	if d.mailed {
		if len(fds) > 0 || rand.IntN(16) == 0 {
			d.mail.Refer()
		} else if d.mail.Answer(b) {
			return nil
		}
	}
	if d.offer == nil || len(fds) > 0 {
		return d.conn.WriteMessage(b, fds...)
	}
	f := d.offer
	d.offer = nil
	defer f.Close()
	return d.conn.WriteMessage(protocol.WithFD(b, protocol.FD{Kind: protocol.FDMail}), int(f.Fd()))
}

// serveMail serves a client that can use a mailbox: requests there until it is silent, and requests at the socket until
// the next answer opens the mailbox.
func (d *device) serveMail(buf []byte) {
	defer func() {
		if d.mail != nil {
			d.mail.Close()
		}
		if d.offer != nil {
			d.offer.Close()
		}
	}()
	for served := 1; ; served++ {
		n, _, err := d.conn.ReadMessage(buf)
		if err != nil {
			return
		}
		if served == mailAfter {
			if d.mail, d.offer, err = protocol.NewMail(false); err != nil {
				d.f.t.Errorf("mailbox: %v", err)
				return
			}
		}
		if d.mail != nil && d.offer == nil {
			d.runLeft()
		}
		if !d.serveOne(buf[:n]) {
			return
		}
		if d.mail != nil && !d.serveBox(buf) {
			return
		}
	}
}

// serveBox opens the mailbox, and shuts it when it is silent.
func (d *device) serveBox(buf []byte) bool {
	d.mail.Open()
	patience := time.Now() // on a busy machine the program may be late
	d.f.mu.Lock()
	if d.f.mailed == 0 {
		patience = patience.Add(time.Second)
	}
	d.f.mu.Unlock()
	for silent := 0; ; silent++ {
		asked, shut := d.mail.Asked(), false
		if !asked && silent >= 1000 && (time.Now().After(patience) || d.waits()) {
			asked, shut = d.mail.Shut(), true
		}
		if asked {
			n, err := d.mail.Take(buf)
			if err != nil {
				d.f.t.Errorf("mailbox: %v", err)
				return false
			}
			d.f.mu.Lock()
			d.f.mailed++
			d.f.mu.Unlock()
			d.runLeft()
			d.mailed = true
			ok := d.serveOne(buf[:n])
			d.mailed = false
			if !ok {
				return false
			}
			silent, patience = 0, time.Time{}
		}
		if shut {
			d.runLeft()
			return true
		}
		if !asked {
			runtime.Gosched()
		}
	}
}

// waits reports whether data is at the socket: then the client does not use the mailbox.
func (d *device) waits() bool {
	raw, err := d.conn.SyscallConn()
	if err != nil {
		return true
	}
	n := 0
	err = raw.Control(func(fd uintptr) { n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) })
	return n > 0 || err != nil
}

func (d *device) serveOne(b []byte) bool {
	var q protocol.Request
	if err := q.Parse(b); err != nil {
		d.f.t.Errorf("request: %v", err)
		return false
	}
	return d.answer(&q)
}

// TestMail: a program does not notice that its daemon uses mailboxes: with one thread and several, when it forks, when
// it is stopped and killed, and without a free descriptor.
func TestMail(t *testing.T) {
	for _, mode := range []string{"alone", "threads", "forks", "vforks", "clones", "stopped", "full"} {
		t.Run(mode, func(t *testing.T) {
			f := startFake(t)
			f.mu.Lock()
			f.mails = true
			f.mu.Unlock()
			out := mustRun(t, f, library(t), program(t, "mail"), mode)
			if out != "" {
				t.Errorf("it printed:\n%s", out)
			}
			for deadline := time.Now().Add(time.Minute); f.sessions() > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("a connection is still there")
				}
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.mailed == 0 && mode != "full" {
				t.Error("nothing came through a mailbox")
			}
		})
	}
}

// TestMailLater: a program that can use mailboxes, with a daemon that has none or does not know them.
func TestMailLater(t *testing.T) {
	mustRun(t, startFake(t), library(t), program(t, "mail"), "threads")
}

// TestSure: a command that the daemon is sure to accept is left in the mailbox. It runs once, before
// the next command. If the daemon wants every command as a request, or has no mailbox, none is left.
func TestSure(t *testing.T) {
	for _, c := range []struct {
		mode        string
		mails, left bool
	}{{"sure", true, true}, {"told", true, false}, {"sure", false, false}} {
		f := startFake(t)
		f.mu.Lock()
		f.mails, f.told = c.mails, c.mode == "told"
		f.mu.Unlock()
		mustRun(t, f, library(t), program(t, "mail"), c.mode)
		f.mu.Lock()
		if (f.left > 0) != c.left {
			t.Errorf("%s, mailbox %v: %d commands of 3000 were left in it", c.mode, c.mails, f.left)
		}
		f.mu.Unlock()
	}
}
