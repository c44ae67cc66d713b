package protocol

import (
	"fmt"
	"strings"
	"testing"
)

// The mailbox as a model: client and daemon take one step at a time, each with at most one access to the state word or
// the socket. A search runs every order of their steps. Only locked instructions change the word, and the contents of
// requests and replies are written before one and read after one. So the search need not model the memory order.

// A mailState is the whole state at one moment.
type mailState struct {
	word               uint32
	request, reply     int8 // in the page
	toDaemon, toClient mailQueue

	client int8 // where it stands
	number int8 // of its request
	was    uint32
	daemon int8
	took   int8 // the request that the daemon serves
	sleeps bool // the daemon: a message wakes it
	served [mailRequests + 1]int8
	broken string
}

const mailRequests = 3

// A mailQueue is one direction of the socket.
type mailQueue struct {
	n   int8
	msg [3]int8
}

func (q *mailQueue) put(m int8) bool {
	if int(q.n) == len(q.msg) {
		return false
	}
	q.msg[q.n] = m
	q.n++
	return true
}

func (q *mailQueue) take() int8 {
	m := q.msg[0]
	q.n--
	copy(q.msg[:], q.msg[1:])
	q.msg[q.n] = 0
	return m
}

// The client's next step.
const (
	clBegin = iota
	clAsk
	clSend
	clLook
	clSleep
	clTake
	clReceive
	clEnd
	clDone
)

// The daemon's next step.
const (
	dmIdle = iota
	dmServe
	dmAnswer
	dmSend   // of a request in the mailbox
	dmReopen // after it
	dmRefer
	dmReferShut
	dmLine // a request came through the socket
	dmLineOpen
)

// A mailMistake is a deliberate mistake that the search must find.
type mailMistake int

const (
	noMistake       mailMistake = iota
	forgetsShut                 // the daemon sleeps and ignores the result of Shut
	ignoresAsleep               // the daemon's answer stays in the mailbox
	sleepsBlindly               // the client ignores the word's value when it set ASLEEP
	asksAnyway                  // the client sets ASKED in a shut mailbox, too
	answersTwice                // the daemon serves an answered request
	storesEnd                   // finally the client restores the old word
	storesShut                  // the daemon clears OPEN by load and store
	mailMistakesEnd = iota
)

var mailMistakes = [...]string{"none", "forgets Shut", "ignores ASLEEP", "sleeps blindly", "asks anyway", "answers twice", "stores End", "stores Shut"}

// breaks records a violated property.
func (s *mailState) breaks(format string, args ...any) { s.broken = fmt.Sprintf(format, args...) }

// got checks a reply.
func (s *mailState) got(reply int8, where string) {
	if reply != s.number {
		s.breaks("request %d: the answer in the %s is that of %d", s.number, where, reply)
	}
}

// clientSteps returns the states that the client's next step can lead to.
func (s mailState) clientSteps(m mailMistake) (next []mailState) {
	add := func(n mailState) { next = append(next, n) }
	switch s.client {
	case clBegin:
		if s.number == mailRequests {
			s.client = clDone
			add(s)
			return next
		}
		s.number++
		if s.client = clSend; s.word == MailOpen || m == asksAnyway && s.word != 0 {
			s.client = clAsk
		}
		add(s)
	case clAsk:
		s.request = s.number
		if s.word == MailOpen || m == asksAnyway {
			s.word |= MailAsked
			s.client = clLook
		} else {
			s.client = clSend
		}
		add(s)
	case clSend:
		if s.toDaemon.put(s.number) {
			s.client = clReceive
			add(s)
		}
	case clLook:
		if s.was = s.word; s.word&(MailAnswered|MailSent) != 0 {
			s.client = clTake
		} else {
			s.client = clSleep // or it looks again, which changes nothing
		}
		add(s)
	case clSleep:
		was := s.word
		s.word |= MailAsleep
		if m != sleepsBlindly {
			s.was = was
		}
		s.client = clTake
		add(s)
	case clTake:
		s.client = clReceive
		if s.was&MailAnswered != 0 {
			s.got(s.reply, "mailbox")
			s.client = clEnd
		}
		add(s)
	case clReceive:
		if s.toClient.n > 0 {
			s.got(s.toClient.take(), "socket")
			s.client = clEnd
			add(s)
		}
	case clEnd:
		// The client is also here after it sent a request over the socket; then this changes nothing.
		if m == storesEnd {
			s.word = MailOpen
		} else {
			s.word &= MailOpen
		}
		s.was, s.client = 0, clBegin
		add(s)
	}
	return next
}

// serves notes that the daemon runs a request.
func (s *mailState) serves(request int8) {
	s.took = request
	if s.served[request]++; s.served[request] > 1 {
		s.breaks("request %d is run twice", request)
	}
}

// daemonSteps returns the states that the daemon's next step can lead to.
func (s mailState) daemonSteps(m mailMistake) (next []mailState) {
	add := func(n mailState) { next = append(next, n) }
	waits := waits(s.word)
	if m == answersTwice {
		waits = s.word&MailAsked != 0
	}
	switch s.daemon {
	case dmIdle:
		if s.toDaemon.n > 0 {
			n := s
			n.sleeps, n.daemon = false, dmLine
			n.serves(n.toDaemon.take())
			add(n)
		}
		if s.sleeps {
			return next
		}
		if s.word&MailOpen != 0 && waits { // it looks into those that are open
			n := s
			n.daemon = dmServe
			add(n)
		}
		if s.word&MailOpen != 0 { // it has been silent, or the loop goes to sleep
			for _, sleeps := range []bool{false, true} {
				n := s
				n.word &^= MailOpen
				if waits && m != forgetsShut {
					n.daemon = dmServe
				} else {
					n.sleeps = sleeps
				}
				add(n)
			}
			if m == storesShut { // another thread's step in between is lost
				for _, c := range s.clientSteps(m) {
					c.word = s.word &^ MailOpen
					c.sleeps = true
					add(c)
				}
			}
		} else {
			n := s
			n.sleeps = true
			add(n)
		}
	case dmServe:
		s.serves(s.request)
		for _, d := range []int8{dmAnswer, dmRefer} {
			s.daemon = d
			add(s)
		}
		s.daemon, s.word = dmSend, s.word|MailSent // the answer is too long
		add(s)
	case dmAnswer:
		s.reply = s.took
		asleep := s.word&MailAsleep != 0
		s.word |= MailAnswered
		if s.daemon = dmReopen; asleep && m != ignoresAsleep {
			s.daemon = dmSend
		}
		add(s)
	case dmSend:
		if s.toClient.put(s.took) {
			s.daemon = dmReopen
			add(s)
		}
	case dmReopen, dmLineOpen:
		n := s
		n.took, n.daemon, n.word = 0, dmIdle, s.word|MailOpen
		add(n)
		s.took, s.daemon = 0, dmIdle // too many are open
		if s.word&MailOpen == 0 {
			add(s)
		}
	case dmRefer:
		s.word |= MailSent
		s.daemon = dmReferShut
		add(s)
	case dmReferShut: // what follows is done by a goroutine
		s.word &^= MailOpen
		s.daemon = dmLine
		add(s)
	case dmLine:
		if s.toClient.put(s.took) {
			s.daemon = dmLineOpen
			add(s)
		}
	}
	return next
}

// over returns what is wrong in a state without a next step, or nothing.
func (s mailState) over() string {
	if s.client != clDone {
		return fmt.Sprintf("request %d waits for ever: word %#x, client at %d, daemon at %d, %d messages for it", s.number, s.word, s.client, s.daemon, s.toDaemon.n)
	}
	if s.toClient.n != 0 {
		return "an answer that nobody waits for"
	}
	for i, n := range s.served[1:] {
		if n != 1 {
			return fmt.Sprintf("request %d is run %d times", i+1, n)
		}
	}
	return ""
}

// searchMail runs every order of steps. It returns the number of states and the faults.
func searchMail(m mailMistake) (states int, faults map[string]bool) {
	seen := map[mailState]bool{}
	faults = map[string]bool{}
	todo := []mailState{{}}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[s] {
			continue
		}
		seen[s] = true
		if s.broken != "" {
			faults[s.broken] = true
			continue
		}
		next := append(s.clientSteps(m), s.daemonSteps(m)...)
		stands := true
		for _, n := range next {
			stands = stands && n == s
		}
		if stands {
			if f := s.over(); f != "" {
				faults[f] = true
			}
		}
		todo = append(todo, next...)
	}
	return len(seen), faults
}

// In every order of steps each request runs once, and the client finds its answer.
func TestMailModel(t *testing.T) {
	states, faults := searchMail(noMistake)
	for f := range faults {
		t.Error(f)
	}
	if t.Logf("%d states", states); states < 500 {
		t.Errorf("only %d states: nothing was searched", states)
	}
}

// The search finds every deliberate mistake.
func TestMailModelFinds(t *testing.T) {
	for m := noMistake + 1; m < mailMistakesEnd; m++ {
		t.Run(strings.ReplaceAll(mailMistakes[m], " ", "-"), func(t *testing.T) {
			_, faults := searchMail(m)
			if len(faults) == 0 {
				t.Error("it is not found")
			}
			for f := range faults {
				t.Log(f)
				break
			}
		})
	}
}
