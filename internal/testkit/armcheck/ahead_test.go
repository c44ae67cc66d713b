package armcheck

import "testing"

// Answers ahead: begin, ahead_keep and copy in shim/ahead.c; Revoke in internal/client/protocol/ahead.go. Version n of an answer has
// revision n, and is two words. A change is visible where another thread can see that the answer is another.
const (
	aheadSeq    int8 = 0
	aheadOf     int8 = 1 // revision of the answer
	aheadAnswer int8 = 2 // two words
	aheadRev    int8 = 4 // the daemon's
	aheadChange int8 = 5

	aheadSent = 0 // note: the latest answer that the daemon has sent
)

// keeper is a thread that keeps these versions as the daemon sends them.
func keeper(flaw, name string, versions []int8) *script {
	p := newScript(name)
	for _, n := range versions {
		var dropped label
		p.receive("receive an answer", func(x *cpu) bool { return x.note[aheadSent] >= n })
		p.load("load the sequence number", plainly, aheadSeq, func(x *cpu, v int8) {
			if x.reg[0] = v; v&1 != 0 && flaw != "a second writer goes on" {
				x.jump(&dropped)
			}
		})
		p.rmw("make it odd", seqCst, aheadSeq, func(x *cpu, v int8) (int8, bool) {
			if v != x.reg[0] {
				x.jump(&dropped)
			}
			return v | 1, v == x.reg[0]
		})
		if flaw != "no fence behind the odd number" {
			p.fence(release)
		}
		p.store("write the revision", plainly, aheadOf, n)
		p.store("write the answer", plainly, aheadAnswer, n)
		p.store("write the rest", plainly, aheadAnswer+1, n)
		p.mem("make it even", func(x *cpu) bool {
			return x.write(aheadSeq, x.reg[0]&^1+2, pickOrder(flaw == "the even number is relaxed", plainly, release), false)
		})
		p.here(&dropped)
		p.then("done", func(x *cpu) { x.reg[0] = 0 })
	}
	return p
}

// asker is a thread that looks for an answer, after it has looked for a change.
func asker(flaw string, times int) *script {
	p := newScript("reader")
	for range times {
		var miss label
		p.load("see a change", acquire, aheadChange, func(x *cpu, v int8) { x.note[1] = v })
		p.load("load the sequence number", pickOrder(flaw == "the number is loaded relaxed", plainly, acquire), aheadSeq, func(x *cpu, v int8) {
			if x.reg[0] = v; v&1 != 0 {
				x.jump(&miss)
			}
		})
		p.copy("copy the revision", 1, aheadOf)
		p.copy("copy the answer", 2, aheadAnswer)
		p.copy("copy the rest", 3, aheadAnswer+1)
		if flaw != "no fence behind the copy" {
			p.fence(acquire)
		}
		if flaw != "the number is loaded once" {
			p.load("load the sequence number again", plainly, aheadSeq, func(x *cpu, v int8) {
				if v != x.reg[0] {
					x.jump(&miss)
				}
			})
		}
		if flaw == "the revision is not compared" {
			p.then("is there an answer?", func(x *cpu) {
				if x.reg[1] == 0 {
					x.jump(&miss)
				}
			})
		} else {
			p.do("compare the revision", func(x *cpu) bool {
				if v, _ := x.read(aheadRev, acquire); v != x.reg[1] {
					x.jump(&miss)
				}
				return true
			})
			p.loads[aheadRev] = true
		}
		p.then("use it", func(x *cpu) {
			switch n := x.reg[1]; {
			case n != x.reg[2] || n != x.reg[3]:
				x.breaks("an answer of revision %d is torn: %d and %d", n, x.reg[2], x.reg[3])
			case n < x.note[1]:
				x.breaks("answer %d is used after change %d was seen", n, x.note[1])
			}
		})
		p.here(&miss)
		p.then("forget it", func(x *cpu) { x.reg, x.note[1] = [weakRegs]int8{}, 0 })
	}
	return p
}

// changer is the daemon: it sends an answer, and changes what it says.
func changer(flaw string, versions int8) *script {
	p := newScript("daemon")
	for n := int8(1); n < versions; n++ {
		p.send("send the answer", func(x *cpu) { x.note[aheadSent] = n })
		revoke := func() {
			p.rmw("revoke it", seqCst, aheadRev, func(_ *cpu, v int8) (int8, bool) { return v + 1, true })
		}
		if flaw != "the daemon revokes afterwards" {
			revoke()
		}
		p.store("the change is visible", release, aheadChange, n+1)
		if flaw == "the daemon revokes afterwards" {
			revoke()
		}
	}
	return p
}

// An answer that is used is whole, and no change of it was visible before.
func TestAhead(t *testing.T) {
	const torn, old = "is torn", "is used after change"
	for _, c := range []struct {
		name    string
		writers bool
		wrong   []flawed
	}{
		{"changes", false, []flawed{
			{flaw: "the daemon revokes afterwards", least: sequential, want: old},
			{flaw: "the revision is not compared", least: sequential, want: old},
		}},
		{"two writers", true, []flawed{
			{flaw: "a second writer goes on", least: sequential, want: torn},
			{flaw: "the number is loaded once", least: sequential, want: torn},
			{flaw: "no fence behind the odd number", least: rmo, want: torn},
			{flaw: "the even number is relaxed", least: rmo, want: torn},
			{flaw: "the number is loaded relaxed", least: rmo, want: torn},
			{flaw: "no fence behind the copy", least: rmo, want: torn},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, func(flaw string) *weakSystem {
				y := &weakSystem{final: func(*world) string { return "" }}
				y.start.base[aheadRev] = 1
				if c.writers { // one has an answer that was revoked since
					y.start.base[aheadRev], y.start.note[aheadSent] = 2, 2
					y.scripts = []*script{keeper(flaw, "writer 1", []int8{1}), keeper(flaw, "writer 2", []int8{2}), asker(flaw, 1)}
				} else {
					y.scripts = []*script{keeper(flaw, "writer", []int8{1}), asker(flaw, 1), changer(flaw, 2)}
				}
				return y
			}, c.wrong)
		})
	}
}
