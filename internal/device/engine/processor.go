package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// A processor decides how the loop's thread uses the CPU while it waits: how long it polls, when
// it yields or naps, and when it moves to another CPU.
//
//	contention  the loop gets its CPU back late after yielding (contention.go)
//	rivals      woken programs preempt it while NICs of class latency are active (prompt.go)
//	affinity    a one-sided stream is faster on another CPU (affinity.go)
//	far         programs in virtual machines poll and never yield (far.go)
type processor struct {
	contention contention
	rivals     rivals
	affinity   affinity

	opts   *Options
	clock  *clock
	bells  *doorbells
	sched  *scheduler
	net    *network
	shared *nic.Loop
}

// patience is how long an idle loop polls before it sleeps. Within a stream with another host it
// polls for longer: the kernel gives an idle CPU to the next waiting thread, which may be the
// other end of the stream, and moves it back again when the loop wakes. The loop also waits for
// programs in virtual machines that ring again and again, see farPace.
func (p *processor) patience() ib.Time {
	d := ib.Time(p.opts.Spin)
	if p.clock.now < p.bells.awaited {
		d = max(d, farPace)
	}
	if p.net.traffic.mode(p.clock.now).streams() {
		d = max(d, quietAfter)
	}
	return d
}

// lingers is how long an idle loop polls before it yields; -1: it yields at once.
func (p *processor) lingers() ib.Time {
	switch m := p.net.traffic.mode(p.clock.now); {
	case m == silent && p.clock.now-p.shared.ForeignBegun() < foreignSoon:
		return -1 // the thread that fetches foreign memory may need this CPU
	case m == silent:
		return linger
	case m.talks():
		return -1
	}
	return netLinger
}
