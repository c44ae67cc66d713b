package armcheck

import (
	"fmt"
	"testing"
)

// The mailbox: mail_ask, mail_await, mail_end and wire_leave in shim/messages.c; internal/client/protocol/mail.go and
// internal/client/server/mailbox.go. The model in package protocol has every order of these steps too, but no memory: here the
// contents of requests, answers and sure commands are words of their own.
const (
	mailState   int8 = 0
	mailRequest int8 = 1
	mailReply   int8 = 2
	mailLeftLen int8 = 3
	mailLeft    int8 = 4 // two sure commands

	mailToDaemon = 0 // notes: messages in the socket
	mailToClient = 1
	mailOpened   = 2 // note: what the daemon knows
	mailRan      = 3 // note: the last command that was run
	mailHas      = 4 // note: Shut found something, and it has to be served

	mailOpen     int8 = 1
	mailAsked    int8 = 2
	mailAsleep   int8 = 4
	mailAnswered int8 = 8
	mailSent     int8 = 16
)

// mailer is a client with these commands, by number: 'a' is a request, 's' one that is too long, 'l' a sure command.
func mailer(flaw, commands string) *script {
	p := newScript("client")
	for i, kind := range commands {
		k := int8(i + 1)
		var ask, socket, receive, take, end, done label
		if kind == 'l' {
			var again label
			p.load("leave: load the state", plainly, mailState, func(x *cpu, v int8) {
				if v != mailOpen {
					x.jump(&ask)
				}
			})
			p.load("leave: load the length", seqCst, mailLeftLen, func(x *cpu, v int8) {
				if x.reg[1] = v; v == 2 {
					x.jump(&ask)
				}
			})
			p.here(&again)
			write := func() {
				p.mem("leave: write the command", func(x *cpu) bool { return x.write(mailLeft+x.reg[1], k, plainly, false) })
			}
			if flaw != "a command is left before it is written" {
				write()
			}
			p.rmw("leave: compare and exchange the length", pickOrder(flaw == "a command is left relaxed", plainly, seqCst), mailLeftLen, func(x *cpu, v int8) (int8, bool) {
				if v == x.reg[1] {
					return v + 1, true
				}
				if x.reg[1] = v; v == 2 {
					x.jump(&ask)
				} else {
					x.jump(&again)
				}
				return 0, false
			})
			if flaw == "a command is left before it is written" {
				write()
			}
			if flaw != "the client does not look again" {
				p.load("leave: is it open?", pickOrder(flaw == "the client looks again by an acquire", acquire, seqCst), mailState, func(x *cpu, v int8) {
					if v&mailOpen != 0 {
						x.jump(&done)
					}
				})
				p.rmw("leave: take it back", seqCst, mailLeftLen, func(x *cpu, v int8) (int8, bool) {
					if v != x.reg[1]+1 {
						x.jump(&done)
						return 0, false
					}
					return x.reg[1], true
				})
			} else {
				p.then("leave: done", func(x *cpu) { x.jump(&done) })
			}
			p.here(&ask)
		}
		p.load("load the state", plainly, mailState, func(x *cpu, v int8) {
			if v != mailOpen || kind == 's' {
				x.jump(&socket)
			}
		})
		p.store("write the request", plainly, mailRequest, k)
		p.rmw("compare and exchange: ask", pickOrder(flaw == "a request is asked relaxed", plainly, seqCst), mailState, func(x *cpu, v int8) (int8, bool) {
			if v != mailOpen {
				x.jump(&socket)
			}
			return v | mailAsked, v == mailOpen
		})
		p.load("await the answer", pickOrder(flaw == "the client awaits relaxed", plainly, acquire), mailState, func(x *cpu, v int8) {
			switch {
			case v&mailAnswered != 0:
				x.jump(&take)
			case v&mailSent != 0:
				x.jump(&receive)
			}
		})
		p.rmw("fall asleep", seqCst, mailState, func(x *cpu, v int8) (int8, bool) {
			if v&mailAnswered != 0 && flaw != "the client sleeps blindly" {
				x.jump(&take)
			} else {
				x.jump(&receive)
			}
			return v | mailAsleep, true
		})
		p.here(&take)
		p.copy("copy the answer", 0, mailReply)
		p.then("the answer is here", func(x *cpu) { x.jump(&end) })
		p.here(&receive)
		p.receive("receive the answer", func(x *cpu) bool {
			x.reg[0], x.note[mailToClient] = x.note[mailToClient], 0
			return x.reg[0] != 0
		})
		p.here(&end)
		var check label
		p.rmw("end", seqCst, mailState, func(x *cpu, v int8) (int8, bool) {
			x.jump(&check)
			return v & mailOpen, true
		})
		p.here(&socket)
		p.send("send the request", func(x *cpu) { x.note[mailToDaemon] = k })
		p.receive("receive the answer", func(x *cpu) bool {
			x.reg[0], x.note[mailToClient] = x.note[mailToClient], 0
			return x.reg[0] != 0
		})
		p.here(&check)
		p.then("is it the right one?", func(x *cpu) {
			if x.reg[0] != k {
				x.breaks("the answer to command %d is %d", k, x.reg[0])
			}
		})
		p.here(&done)
		p.then("done", func(x *cpu) { x.reg = [weakRegs]int8{} })
	}
	return p
}

// postmaster is the daemon's loop. Register 3 is the request.
func postmaster(flaw string) *script {
	p := newScript("daemon")
	waits := func(v int8) bool { return v&(mailAsked|mailAnswered|mailSent) == mailAsked }
	runs := func(x *cpu, k int8) {
		if k != x.note[mailRan]+1 {
			x.breaks("command %d is run after %d", k, x.note[mailRan])
		}
		x.note[mailRan] = k
	}
	early := func() {
		var again, none label
		p.here(&again)
		p.load("early: load the length", seqCst, mailLeftLen, func(x *cpu, v int8) {
			if x.reg[0] = v; v == 0 {
				x.jump(&none)
			}
		})
		p.copy("early: copy the first", 1, mailLeft)
		p.copy("early: copy the second", 2, mailLeft+1)
		if flaw == "the commands are taken by a store" {
			p.store("early: take them", seqCst, mailLeftLen, 0)
		} else {
			p.rmw("early: take them", pickOrder(flaw == "the commands are taken relaxed", plainly, seqCst), mailLeftLen, func(x *cpu, v int8) (int8, bool) {
				if v != x.reg[0] {
					x.jump(&again)
				}
				return 0, v == x.reg[0]
			})
		}
		p.then("early: run them", func(x *cpu) {
			for i := range x.reg[0] {
				runs(x, x.reg[1+i])
			}
		})
		p.here(&none)
	}
	look := pickOrder(flaw == "the daemon looks relaxed", plainly, seqCst)
	var idle, line, poll, shut, shutting, serve, short, long, refer, attend label
	p.here(&idle)
	p.sleep[idle.at] = true
	p.do("what next?", func(x *cpu) bool {
		x.reg = [weakRegs]int8{}
		var can []*label
		if x.note[mailHas] != 0 {
			can = append(can, &serve)
		}
		if x.note[mailToDaemon] != 0 {
			can = append(can, &line)
		}
		if x.note[mailOpened] != 0 {
			can = append(can, &poll, &shut)
		}
		if len(can) == 0 {
			return false
		}
		x.choices = int8(len(can))
		x.jump(can[x.pick])
		return true
	})
	p.here(&line)
	p.receive("receive a request", func(x *cpu) bool {
		x.reg[3], x.note[mailToDaemon] = x.note[mailToDaemon], 0
		return true
	})
	if flaw != "the socket passes commands" {
		early()
	}
	p.then("run it", func(x *cpu) { runs(x, x.reg[3]) })
	p.send("send the answer", func(x *cpu) { x.note[mailToClient] = x.reg[3]; x.jump(&attend) })

	p.here(&poll)
	p.load("is there a request?", look, mailState, func(x *cpu, v int8) {
		if waits(v) {
			x.jump(&serve)
		} else {
			x.jump(&idle)
		}
	})

	p.here(&shut)
	left := func() {
		p.load("are there commands?", pickOrder(flaw == "the daemon looks again by a relaxed load", plainly, seqCst), mailLeftLen, func(x *cpu, v int8) {
			if v != 0 {
				x.note[mailHas] = 1
			}
		})
	}
	if flaw == "the daemon looks before it shuts" {
		left()
	}
	p.here(&shutting)
	p.rmw("shut", pickOrder(flaw == "the daemon shuts relaxed", plainly, seqCst), mailState, func(x *cpu, v int8) (int8, bool) {
		if waits(v) && flaw != "Shut is ignored" {
			x.note[mailHas] = 1
		}
		x.note[mailOpened] = 0
		return v &^ mailOpen, true
	})
	if flaw != "the daemon looks before it shuts" {
		left()
	}
	p.then("go on", func(x *cpu) { x.jump(&idle) })

	p.here(&serve)
	p.then("serve the mailbox", func(x *cpu) { x.note[mailHas] = 0 })
	if flaw != "the mailbox passes commands" {
		early()
	}
	p.load("is there a request?", look, mailState, func(x *cpu, v int8) {
		if !waits(v) {
			x.jump(&attend)
		}
	})
	p.copy("copy the request", 3, mailRequest)
	p.do("run it", func(x *cpu) bool {
		runs(x, x.reg[3])
		x.choices = 3
		x.jump([]*label{&short, &long, &refer}[x.pick])
		return true
	})
	p.here(&short)
	p.mem("write the answer", func(x *cpu) bool { return x.write(mailReply, x.reg[3], plainly, false) })
	p.rmw("answered", pickOrder(flaw == "a request is answered relaxed", plainly, seqCst), mailState, func(x *cpu, v int8) (int8, bool) {
		if v&mailAsleep == 0 || flaw == "ASLEEP is ignored" {
			x.jump(&attend)
		}
		return v | mailAnswered, true
	})
	p.send("send the answer", func(x *cpu) { x.note[mailToClient] = x.reg[3]; x.jump(&attend) })
	p.here(&long)
	p.rmw("sent", seqCst, mailState, func(x *cpu, v int8) (int8, bool) { return v | mailSent, true })
	p.send("send the answer", func(x *cpu) { x.note[mailToClient] = x.reg[3]; x.jump(&attend) })
	p.here(&refer)
	p.rmw("refer", seqCst, mailState, func(x *cpu, v int8) (int8, bool) { return v | mailSent, true })
	p.rmw("shut", seqCst, mailState, func(x *cpu, v int8) (int8, bool) {
		x.note[mailOpened] = 0
		return v &^ mailOpen, true
	})
	p.send("send the answer", func(x *cpu) { x.note[mailToClient] = x.reg[3]; x.jump(&idle) })

	p.here(&attend)
	p.do("attend?", func(x *cpu) bool {
		if x.note[mailOpened] != 0 {
			x.jump(&idle)
		} else if x.choices = 2; x.pick == 1 { // too many are open
			x.jump(&idle)
		}
		return true
	})
	p.rmw("open", seqCst, mailState, func(x *cpu, v int8) (int8, bool) {
		x.note[mailOpened] = 1
		x.jump(&idle)
		return v | mailOpen, true
	})
	return p
}

// Each command runs once, in its turn, as it was written, and the client gets its answer. None stays in a mailbox that is shut.
func TestMailbox(t *testing.T) {
	const (
		other, hangs, stays = "the answer to", "client hangs at: receive", "stays"
		run                 = "is run after"
	)
	for _, c := range []struct {
		commands string
		wrong    []flawed
	}{
		{"aaa", []flawed{
			{flaw: "Shut is ignored", least: sequential, want: hangs},
			{flaw: "ASLEEP is ignored", least: sequential, want: hangs},
			{flaw: "the client sleeps blindly", least: sequential, want: hangs},
			{flaw: "a request is asked relaxed", least: rmo, want: run},
			{flaw: "a request is answered relaxed", least: rmo, want: other},
			{flaw: "the client awaits relaxed", least: rmo, want: other},
		}},
		{"lal", []flawed{
			{flaw: "the mailbox passes commands", least: sequential, want: run},
			{flaw: "the client does not look again", least: sequential, want: stays},
			{flaw: "the daemon looks before it shuts", least: sequential, want: stays},
			{flaw: "a command is left before it is written", least: sequential, want: run},
			{flaw: "the client looks again by an acquire", least: rmo, want: stays},
			{flaw: "a command is left relaxed", least: rmo, want: run},
			{flaw: "the daemon shuts relaxed", least: rmo, want: run},
			{flaw: "the daemon looks again by a relaxed load", least: rmo, want: stays},
		}},
		{"als", []flawed{
			{flaw: "the socket passes commands", least: sequential, want: run},
			{flaw: "the daemon looks relaxed", least: rmo, want: run},
		}},
		{"lll", []flawed{
			{flaw: "the commands are taken by a store", least: sequential, want: run},
			{flaw: "the commands are taken relaxed", least: rmo, want: run},
		}},
	} {
		t.Run(c.commands, func(t *testing.T) {
			check(t, func(flaw string) *weakSystem {
				y := &weakSystem{scripts: []*script{mailer(flaw, c.commands), postmaster(flaw)}}
				y.start.base[mailState], y.start.note[mailOpened] = mailOpen, 1
				y.final = func(w *world) string {
					if ran := w.note[mailRan]; int(ran) != len(c.commands) {
						return fmt.Sprintf("a command stays in the mailbox: %d of %d are run", ran, len(c.commands))
					}
					return ""
				}
				return y
			}, c.wrong)
		})
	}
}
