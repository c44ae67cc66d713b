package fault

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

var peerA, peerB = netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2")

func plan(t testing.TB, specs ...string) (*Plan, *[]Hit) {
	t.Helper()
	var rules []Named
	for i, spec := range specs {
		r, err := Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, Named{fmt.Sprint(i + 1), r})
	}
	p := New(rules, time.Second)
	hits := new([]Hit)
	p.Report = func(h Hit) { *hits = append(*hits, h) }
	return p, hits
}

// packets offers n messages of size packets each, and returns the numbers of those that do not pass as they are.
func packets(p *Plan, now time.Duration, x Packet, n, size int) (hit []int) {
	f := p.NewFlow()
	for i := range n * size {
		x.First = i%size == 0
		if v := p.Decide(now, f, &x); v != (Verdict{}) {
			hit = append(hit, i+1)
		}
	}
	return hit
}

func TestSelectors(t *testing.T) {
	send := Packet{Op: Send, Out: true, RC: true, QP: 17, Peer: peerA, Size: 100}
	tests := []struct {
		spec string
		x    func(*Packet)
		now  time.Duration // since the plan began
		want []int
	}{
		{"drop,packet=3", nil, 0, []int{3}},
		{"drop,packet=2-4", nil, 0, []int{2, 3, 4}},
		{"drop,message=2", nil, 0, []int{3, 4}},
		{"drop,every=3", nil, 0, []int{3, 6}},
		{"drop,count=2", nil, 0, []int{1, 2}},
		{"drop,op=write", nil, 0, nil},
		{"drop,op=write+send,packet=1", nil, 0, []int{1}},
		{"drop,packet=1", func(x *Packet) { x.Op = Ack }, 0, nil},
		{"drop,packet=1,op=ack", func(x *Packet) { x.Op = Ack }, 0, []int{1}},
		{"drop,packet=1,direction=in", nil, 0, nil},
		{"drop,packet=1,direction=in", func(x *Packet) { x.Out = false }, 0, []int{1}},
		{"drop,packet=1", func(x *Packet) { x.Out = false }, 0, nil},
		{"drop,packet=1,direction=both", func(x *Packet) { x.Out = false }, 0, []int{1}},
		{"drop,packet=1,peer=10.1.0.0/24", nil, 0, []int{1}},
		{"drop,packet=1,peer=10.1.0.2", nil, 0, nil},
		{"drop,packet=1,qp=17", nil, 0, []int{1}},
		{"drop,packet=1,qp=18", nil, 0, nil},
		{"drop,packet=1,from=1s", nil, 0, nil},
		{"drop,packet=1,from=1s", nil, time.Second, []int{1}},
		{"drop,packet=1,from=1s,for=1s", nil, 2 * time.Second, nil},
		{"rnr,packet=1", func(x *Packet) { x.RC = false }, 0, nil},
		{"rnr,packet=1", func(x *Packet) { x.Op = ReadResponse }, 0, nil},
		{"duplicate,packet=2", nil, 0, []int{2}},
		{"reorder,packet=2", nil, 0, []int{2}},
		{"delay,time=1ms,packet=2", nil, 0, []int{2}},
		{"reg-mr", nil, 0, nil},
		{"port-down,message=2", nil, 0, []int{3}},
		{"port-down", nil, 0, nil},
	}
	for _, test := range tests {
		p, _ := plan(t, test.spec)
		x := send
		if test.x != nil {
			test.x(&x)
		}
		if got := packets(p, time.Second+test.now, x, 3, 2); !slices.Equal(got, test.want) {
			t.Errorf("%s: hits packets %v, want %v", test.spec, got, test.want)
		}
	}
}

// TestReplay checks that chance depends on nothing but the seed and the packet: not on other flows or rules' order of
// questions.
func TestReplay(t *testing.T) {
	x := Packet{Op: Write, Out: true, RC: true, Peer: peerA}
	run := func(spec string, between int) []int {
		p, _ := plan(t, spec)
		f := p.NewFlow()
		other := p.NewFlow()
		var hit []int
		for i := range 10000 {
			for range between {
				p.Decide(time.Second, other, &x)
			}
			if p.Decide(time.Second, f, &x).Action == Drop {
				hit = append(hit, i)
			}
		}
		return hit
	}
	first := run("drop,probability=1%,seed=1", 0)
	if n := len(first); n < 50 || n > 150 {
		t.Errorf("1%% of 10000 packets: %d hits", n)
	}
	if again := run("drop,probability=1%,seed=1", 3); !slices.Equal(first, again) {
		t.Errorf("with another flow beside: got %v, want %v", again, first)
	}
	if other := run("drop,probability=1%,seed=2", 0); slices.Equal(first, other) {
		t.Error("another seed has the same hits")
	}
}

func TestVanish(t *testing.T) {
	p, hits := plan(t, "vanish,packet=2,for=5s")
	out := Packet{Op: Send, Out: true, RC: true, Peer: peerA, First: true}
	f, back := p.NewFlow(), p.NewFlow()
	in := out
	in.Out, in.Op = false, Ack
	if v := p.Decide(time.Second, back, &in); v.Action != None {
		t.Errorf("before: an ACK is hit: %v", v)
	}
	p.Decide(time.Second, f, &out)
	for range 3 {
		if v := p.Decide(time.Second, f, &out); v.Action != Drop {
			t.Errorf("a packet to the peer passes: %v", v)
		}
		if v := p.Decide(time.Second, back, &in); v.Action != Drop {
			t.Errorf("a packet from the peer passes: %v", v)
		}
	}
	if !p.Gone(time.Second, peerA) || p.Gone(time.Second, peerB) {
		t.Error("Gone is wrong")
	}
	if got := p.Connect(time.Second, Packet{Out: true, Peer: peerA}); got != CMTimeout {
		t.Errorf("a connection: got %v", got)
	}
	if p.Gone(6*time.Second, peerA) {
		t.Error("the peer is gone after the time window")
	}
	if len(*hits) != 1 {
		t.Errorf("%d hits, want the one that the peer vanished with", len(*hits))
	}
}

func TestDelays(t *testing.T) {
	p, _ := plan(t, "delay,time=1ms,jitter=10ms")
	x := Packet{Op: Send, Out: true, RC: true, Peer: peerA}
	f, last := p.NewFlow(), time.Duration(0)
	for i := range 1000 {
		now := time.Second + time.Duration(i)*time.Microsecond
		v := p.Decide(now, f, &x)
		if v.Delay < time.Millisecond || now+v.Delay < last {
			t.Fatalf("packet %d: delayed by %v, before an earlier one", i, v.Delay)
		}
		last = now + v.Delay
	}
	p, _ = plan(t, "rate,rate=8Mbit") // a byte in a microsecond
	f = p.NewFlow()
	x.Size = 1000
	for i := range 10 {
		if v := p.Decide(time.Second, f, &x); v.Delay != time.Duration(i+1)*time.Millisecond || !v.Limited {
			t.Errorf("packet %d at a rate: %+v", i, v)
		}
	}
}

func TestCalls(t *testing.T) {
	p, hits := plan(t, "reg-mr,message=2", "cm-reject,peer=10.1.0.1,count=1", "cm-timeout,direction=in", "completion-delay,time=2ms,every=2")
	var regs []bool
	for range 3 {
		regs = append(regs, p.RegMR(time.Second, Packet{}))
	}
	if !slices.Equal(regs, []bool{false, true, false}) {
		t.Errorf("registrations fail: %v", regs)
	}
	a := p.Connect(time.Second, Packet{Out: true, Peer: peerA})
	b := p.Connect(time.Second, Packet{Out: true, Peer: peerA})
	c := p.Connect(time.Second, Packet{Out: true, Peer: peerB})
	d := p.Connect(time.Second, Packet{Peer: peerA})
	if a != CMReject || b != None || c != None || d != CMTimeout {
		t.Errorf("connections: %v %v %v %v", a, b, c, d)
	}
	if x, y := p.Completion(time.Second, Packet{}), p.Completion(time.Second, Packet{}); x != 0 || y != 2*time.Millisecond {
		t.Errorf("completions are delayed by %v, %v", x, y)
	}
	if len(*hits) != 4 {
		t.Errorf("%d hits, want 4: %v", len(*hits), *hits)
	}
	var none *Plan
	if none.RegMR(0, Packet{}) || none.Connect(0, Packet{}) != None || none.Completion(0, Packet{}) != 0 || none.Holds() || none.Next() != 0 || none.Due(0) != nil {
		t.Error("a nil plan does something")
	}
}

func TestEvents(t *testing.T) {
	p, _ := plan(t, "port-down,from=1s,for=2s", "device-fatal,from=5s", "gid-change,message=1", "suspend,message=2,for=3s")
	due := func(now time.Duration, want ...Event) {
		t.Helper()
		if got := p.Due(now); !slices.Equal(got, want) {
			t.Errorf("at %v: got %v, want %v", now, got, want)
		}
	}
	if p.Next() != 2*time.Second {
		t.Errorf("next: %v", p.Next())
	}
	due(time.Second)
	due(2*time.Second, Event{PortDown, false})
	if p.Next() != 4*time.Second {
		t.Errorf("next: %v", p.Next())
	}
	due(4*time.Second, Event{PortDown, true})
	due(5 * time.Second)
	due(6*time.Second, Event{DeviceFatal, false})
	if p.Next() != 0 {
		t.Errorf("next: %v", p.Next())
	}
	x := Packet{Op: Send, Out: true, First: true}
	f := p.NewFlow()
	if v := p.Decide(6*time.Second, f, &x); v.Event != GIDChange {
		t.Errorf("the first message: %+v", v)
	}
	if v := p.Decide(6*time.Second, f, &x); v.Event != Suspend || p.Next() != 9*time.Second {
		t.Errorf("the second message: %+v, next: %v", v, p.Next())
	}
	if got := p.End(); !slices.Equal(got, []Event{{DeviceFatal, true}, {GIDChange, true}, {Suspend, true}}) {
		t.Errorf("the end of the plan ends %v", got)
	}
}

// TestActions checks that every action has a name and a text, and can be written with what it needs.
func TestActions(t *testing.T) {
	for a := Drop; a < NumActions; a++ {
		if actions[a].name == "" || actions[a].help == "" || actions[a].traits == 0 {
			t.Errorf("action %d is not described: %+v", a, actions[a])
		}
	}
}

// TestAllocations: a packet that a rule is asked about costs no memory.
func TestAllocations(t *testing.T) {
	p, _ := plan(t, "drop,probability=1%", "delay,time=1ms,op=read", "corrupt,packet=1000000")
	p.Report = nil
	f, x := p.NewFlow(), Packet{Op: Send, Out: true, RC: true, Peer: peerA}
	if n := testing.AllocsPerRun(1000, func() { p.Decide(time.Second, f, &x) }); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

func BenchmarkDecide(b *testing.B) {
	p, _ := plan(b, "drop,probability=1%")
	p.Report = nil
	f, x := p.NewFlow(), Packet{Op: Send, Out: true, RC: true, Peer: peerA}
	for b.Loop() {
		p.Decide(time.Second, f, &x)
	}
}
