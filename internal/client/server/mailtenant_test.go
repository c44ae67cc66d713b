package server

import (
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/testkit/leak"
)

// A command in a mailbox above the tenant's rate waits like others.
func TestMailboxIsPaced(t *testing.T) {
	const rate = 100
	pace := &budget.Pace{Tenant: "red"}
	s := testServerWith(t, Config{Listeners: []Listener{{Commands: pace}}})
	m := newMailer(t, s, protocol.KindUverbs)
	m.give()
	for waited := 0; waited < 3; {
		if !m.patient() {
			t.Fatalf("%d commands in the mailbox had to wait within a minute, want 3", waited)
		}
		m.ends(portCommand(1), 0) // so that it is open
		pace.Set(rate)
		var wait time.Duration
		var began time.Time
		for wait == 0 {
			began = time.Now()
			wait = pace.Wait(began)
		}
		before := m.mailed
		m.ends(portCommand(1), 0)
		took := time.Since(began)
		if want := wait + time.Second/rate; took < want {
			t.Fatalf("a command was answered after %v, its turn is after %v; mailed: %v", took, want, m.mailed > before)
		}
		waited += m.mailed - before
		pace.Set(0)
	}
}

// The time of commands in a mailbox is charged to the NIC, and its quota applies to them.
func TestMailboxIsBilled(t *testing.T) {
	l := roomy()
	l.All[budget.State] = 1 << 20
	ledger := budget.New(l)
	s := testServerWith(t, Config{Budget: ledger})
	m := newMailer(t, s, protocol.KindUverbs)
	m.give()
	spent := func() (d ib.Time) {
		s.loop.Do(func() { d = s.listeners.list[0].NIC.Device.Counters().LoopTime })
		return d
	}
	before, mailed := spent(), m.mailed
	for m.mailed < mailed+50 && m.patient() {
		r := m.send(legacy(abi.CmdAllocPD, &abi.AllocPD{Response: respAddr}, nil, 4))
		if r.Error != 0 {
			t.Fatalf("ALLOC_PD: errno %d", r.Error)
		}
		m.ends(legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: u32(r.Stores[0].Data, 0)}, nil, 0), 0)
	}
	if after := spent(); after <= before {
		t.Errorf("after %d commands the loop has spent %d ns for the NIC, before them %d", m.mailed-mailed, after, before)
	}
	p, q := pd(m.client), cq(m.client)
	create := legacy(abi.CmdCreateQP, qpRequest(p, q), nil, 64)
	var errno syscall.Errno
	for n := 0; errno == 0 && n < 1000; n++ {
		errno = syscall.Errno(m.send(create).Error)
	}
	for mailed = m.mailed; errno == syscall.ENOMEM && m.mailed == mailed && m.patient(); {
		errno = syscall.Errno(m.send(create).Error)
	}
	if errno != syscall.ENOMEM {
		t.Errorf("queue pairs ended with %v, want ENOMEM", errno)
	}
}

// Clients that change the state word all the time do not keep others from being served, and nothing is left of them
// when they end in the middle.
func TestMailboxFlipped(t *testing.T) {
	s := testServer(t)
	other, line := newMailer(t, s, protocol.KindUverbs), open(t, s)
	other.give()
	files := leak.Descriptors(t)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var rude []*mailer
	for range 4 {
		m := newMailer(t, s, protocol.KindUverbs)
		m.give()
		port := (&protocol.Request{Op: protocol.OpCommand, Command: portCommand(1)}).Append(nil)
		rude = append(rude, m)
		wg.Add(2)
		go func() { // or the daemon would not look into the mailbox for long
			defer wg.Done()
			buf := make([]byte, protocol.MaxMessage)
			for err := error(nil); err == nil; {
				_, _, err = m.dev.ReadMessage(buf)
			}
		}()
		go func() {
			defer wg.Done()
			for i := uint32(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				m.mail.End()
				m.mail.Ask(port)
				if i%4 == 0 {
					m.mail.Await(0, m.buf) // it says that it sleeps, and does not read
				}
				if i%1000 == 0 {
					m.dev.WriteMessage(port)
				}
			}
		}()
	}
	rounds := 40 // each takes a time slice or two, because the clients never sleep
	if os.Getenv("VRDMA_TEST_ALL") != "" {
		rounds = 300
	}
	for range rounds {
		other.ends(portCommand(1), 0)
		line.must(portCommand(1))
	}
	for _, m := range rude {
		m.dev.Close()
		m.proc.Close()
	}
	close(stop)
	wg.Wait()
	for _, m := range rude {
		m.mail.Close()
		m.file.Close()
		m.mail = nil
		for _, c := range []*protocol.Session{m.dev, m.proc} {
			for _, f := range c.Files {
				f.Close()
			}
		}
	}
	eventually(t, "their files are closed", func() bool { return leak.Descriptors(t) <= files })
	other.ends(portCommand(1), 0)
}
