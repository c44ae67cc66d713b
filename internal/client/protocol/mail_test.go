package protocol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// mailPair returns a mailbox as the daemon and as the client has it.
func mailPair(t testing.TB) (daemon, client *Mail) {
	t.Helper()
	daemon, f, err := NewMail(false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if client, err = OpenMail(f); err != nil {
		t.Fatal(err)
	}
	if os.Truncate("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), 0) == nil {
		t.Error("a client can truncate the mailbox")
	}
	t.Cleanup(func() { daemon.Close(); client.Close() })
	return daemon, client
}

func TestMail(t *testing.T) {
	d, c := mailPair(t)
	buf := make([]byte, MaxMessage)
	if c.Ask([]byte("early")) || d.Asked() {
		t.Error("a mailbox that is shut takes a request")
	}
	d.Open()
	if c.Ask(make([]byte, MailReply-MailRequest+1)) {
		t.Error("a request that is too long is taken")
	}
	if !c.Ask([]byte("hello")) || !d.Asked() {
		t.Fatal("an open mailbox takes no request")
	}
	if c.Ask([]byte("again")) {
		t.Error("a second request before the first is answered")
	}
	if n, err := d.Take(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("took %q, %v", buf[:n], err)
	}
	if !d.Answer([]byte("world")) || d.Asked() {
		t.Error("a client that looks has to be sent its answer")
	}
	if n, here := c.Await(0, buf); !here || string(buf[:n]) != "world" {
		t.Errorf("the answer is %q, %v", buf[:n], here)
	}
	c.End()

	// The answer uses the socket if the client sleeps, if it is too long, or if another goroutine will send it.
	for name, answer := range map[string]func() bool{
		"asleep":   func() bool { c.Await(0, buf); return d.Answer([]byte("x")) },
		"too long": func() bool { return d.Answer(make([]byte, MailSize)) },
		"referred": func() bool { d.Refer(); return false },
	} {
		d.Open()
		if !c.Ask([]byte(name)) {
			t.Fatalf("%s: the mailbox is not open again", name)
		}
		if answer() || d.Asked() {
			t.Errorf("%s: the answer is not to be sent", name)
		}
		if _, here := c.Await(1, buf); here && name != "asleep" {
			t.Errorf("%s: there is an answer in the mailbox", name)
		}
		c.End()
	}
	d.Shut()
	if c.Ask([]byte("late")) {
		t.Error("a mailbox that was shut takes a request")
	}
	d.Open()
	c.Ask([]byte("before"))
	if !d.Shut() {
		t.Error("Shut does not tell of a request that came before")
	}
}

// A client may write any bytes.
func TestMailScribbled(t *testing.T) {
	d, c := mailPair(t)
	buf := make([]byte, MaxMessage)
	for range 20_000 {
		d.Open()
		binary.NativeEndian.PutUint32(c.mem[MailState:], rand.Uint32()>>rand.IntN(32))
		binary.NativeEndian.PutUint32(c.mem[MailAskedLen:], rand.Uint32()>>rand.IntN(32))
		d.Asked()
		if n, err := d.Take(buf); err != nil && !errors.Is(err, ErrMalformed) || n > MailReply-MailRequest {
			t.Fatalf("took %d bytes, %v", n, err)
		}
		d.Answer(buf[:rand.IntN(MailSize)])
		if d.Refer(); d.Shut() {
			t.Fatal("a request after it was referred")
		}
	}
}

// In every timing each request is answered once, and the client finds the answer: in the mailbox or at the socket,
// which are channels here.
func TestMailRaces(t *testing.T) {
	const rounds = 50_000
	d, c := mailPair(t)
	toDaemon, toClient := make(chan []byte, 1), make(chan []byte, 2)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { // the daemon
		defer close(done)
		buf := make([]byte, 64)
		answer := func(n int, mailed bool) {
			reply := append([]byte("re "), buf[:n]...)
			if mailed && rand.IntN(8) == 0 {
				d.Refer()
				toClient <- reply
			} else if !mailed || !d.Answer(reply) {
				toClient <- reply
			}
		}
		for {
			select {
			case req := <-toDaemon:
				answer(copy(buf, req), false)
				d.Open()
			case <-stop:
				return
			default:
			}
			if d.Asked() || rand.IntN(16) == 0 && d.Shut() {
				n, err := d.Take(buf)
				if err != nil {
					t.Error(err)
				}
				answer(n, true)
			}
			if rand.IntN(4) == 0 {
				runtime.Gosched()
			}
		}
	}()
	buf := make([]byte, 64)
	mailed, sent := 0, 0
	for i := range rounds {
		req := strconv.AppendInt(nil, int64(i), 10)
		asked, here := c.Ask(req), false
		n := 0
		if asked {
			mailed++
			n, here = c.Await(rand.IntN(20), buf)
		} else {
			sent++
			toDaemon <- req
		}
		if !here {
			select {
			case reply := <-toClient:
				n = copy(buf, reply)
			case <-time.After(time.Minute):
				t.Fatalf("request %d: no answer; mailed %v, state %#x", i, asked, c.word(MailState).Load())
			}
		}
		if asked {
			c.End()
		}
		if want := append([]byte("re "), req...); !bytes.Equal(buf[:n], want) {
			t.Fatalf("request %d: answer %q, want %q", i, buf[:n], want)
		}
	}
	close(stop)
	<-done
	if len(toClient) != 0 {
		t.Error("an answer was given twice")
	}
	if mailed < rounds/100 || sent == 0 {
		t.Errorf("%d requests through the mailbox, %d through the socket", mailed, sent)
	}
}

// TestLeave: commands that are left in a mailbox, which opens and shuts all the time, are taken once, in order, and
// before the next request. A shut mailbox holds nothing.
func TestLeave(t *testing.T) {
	d, c := mailPair(t)
	if c.Leave([]byte("command!")) {
		t.Error("a mailbox that is shut takes a command")
	}
	const rounds = 5_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, MaxMessage)
		for i := range uint64(rounds) {
			number := binary.NativeEndian.AppendUint64(nil, i)
			if i%10 != 9 && c.Leave(number) {
				continue
			}
			for !c.Ask(number) {
				runtime.Gosched()
			}
			if _, here := c.Await(1<<30, buf); !here {
				t.Error("an answer has to be sent")
			}
			c.End()
		}
	}()
	var left [MaxLeft]byte
	next, lefts := uint64(0), 0
	see := func(b []byte) {
		if i := binary.NativeEndian.Uint64(b); i != next {
			t.Fatalf("command %d, want %d", i, next)
		}
		next++
	}
	take := func() {
		n := d.TakeLeft(left[:])
		for i := 0; i < n; i += 8 {
			see(left[i:])
			lefts++
		}
	}
	buf := make([]byte, MaxMessage)
	answer := func() {
		take()
		if _, err := d.Take(buf); err != nil {
			t.Fatal(err)
		}
		see(buf)
		d.Answer(nil)
	}
	for deadline := time.Now().Add(time.Minute); next < rounds; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d commands came in a minute", next, rounds)
		}
		d.Open()
		for range rand.IntN(20) {
			if d.Asked() {
				answer()
			}
			runtime.Gosched()
		}
		asked := d.Shut()
		take()
		if asked {
			answer()
		}
		if d.Left() {
			// A client that leaves a command and finds the mailbox closed takes the command back at once.
			for deadline := time.Now().Add(time.Minute); d.Left(); runtime.Gosched() {
				if time.Now().After(deadline) {
					t.Fatal("a command lies in a mailbox that is shut")
				}
			}
		}
	}
	<-done
	if lefts == 0 {
		t.Error("no command was left")
	}
	c.word(MailLeftLen).Store(MaxLeft + 1)
	if n := d.TakeLeft(left[:]); n != 0 || d.Left() {
		t.Errorf("%d bytes of nonsense were taken", n)
	}
}
