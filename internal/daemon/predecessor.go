package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/client/vm"
	"vrdma.dev/vrdma/internal/handover"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/platform/systemd"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/tenancy/store/etcd"
)

// A live upgrade, the old daemon's side. successor.go has the other side.

// succession hands a daemon over to the next one. It implements server.Succession.
type succession struct {
	d       *daemon
	handing atomic.Bool                   // the daemon is being handed over
	busy    sync.Mutex                    // held meanwhile, and while vrdma upgrade is answered
	asker   atomic.Pointer[protocol.Conn] // of vrdma upgrade, which waits for the outcome; nil: none
}

// errHanding is the answer to a second successor.
var errHanding = errors.New("the daemon is being handed over to another one already")

// A lender is a part of a daemon that gives its file to the next daemon.
type lender interface {
	Release() error
	Reclaim() error
}

// HandOver implements server.Succession.
func (s *succession) HandOver(c *protocol.Conn) {
	if !s.handing.CompareAndSwap(false, true) {
		c.SendJSON(protocol.ControlReply{Error: errHanding.Error()})
		return
	}
	s.busy.Lock()
	defer s.busy.Unlock()
	defer s.handing.Store(false)
	link, theirs, err := handover.Pair()
	if err != nil {
		c.SendJSON(protocol.ControlReply{Error: err.Error()})
		return
	}
	defer link.Close()
	if err = c.SendJSON(protocol.ControlReply{}); err == nil {
		err = c.WriteMessage([]byte{0}, int(theirs.Fd()))
	}
	theirs.Close()
	if err == nil {
		err = s.handOver(link)
	}
	var theirRefusal *handover.Refusal
	if !errors.As(err, &theirRefusal) {
		link.Refuse(err)
	}
	s.d.log.Warn("the next daemon has not taken over; this one continues", "why", err)
}

// obstacles returns why the daemon cannot be handed over to one that takes over these; nil: it can.
func (s *succession) obstacles(taken []string) error {
	d := s.d
	if len(d.machines) > 0 && !slices.Contains(taken, takesGuests) {
		return errors.New("it serves programs in virtual machines (--guest), and the next version cannot take them over: restart the daemon")
	}
	if _, ok := d.store.Store.(*etcd.Store); ok && !slices.Contains(taken, takesEtcd) {
		return errors.New("its store is in etcd, and the next version cannot take over the registration there: restart the daemon")
	}
	if why := d.plane.Fenced(); why != "" {
		return errors.New(why)
	}
	if d.between.tunnel.Load() != nil && !slices.Contains(taken, takesTunnel) {
		return errors.New("it has encrypted networks, and the next version cannot take over their tunnels: restart the daemon")
	}
	if why := d.provisioner.Obstacles(slices.Contains(taken, takesContainers), slices.Contains(taken, takesCards)); len(why) > 0 {
		return fmt.Errorf("%s: the next version cannot take that over; restart the daemon", strings.Join(why, ", "))
	}
	return nil
}

// handOver hands the daemon over. It returns only after an error; the daemon continues then.
func (s *succession) handOver(link *handover.Link) error {
	d := s.d
	link.SetDeadline(time.Now().Add(offerTime))
	var next greeting
	if _, err := link.Receive(handover.Hello, &next); err != nil {
		return err
	}
	if err := s.obstacles(next.Takes); err != nil {
		return err
	}
	pause, cancel := context.WithTimeout(context.Background(), freezeTime)
	defer cancel()
	resume, err := d.plane.Pause(pause)
	if err != nil {
		return err
	}
	defer resume()
	restore, err := s.release()
	defer restore()
	if err != nil {
		return err
	}
	o, fds := s.offer()
	if err := link.Send(handover.Offer, o, fds); err != nil {
		return err
	}
	link.SetDeadline(time.Now().Add(prepareTime))
	if _, err := link.Receive(handover.Ready, nil); err != nil {
		return err
	}
	// Until here the daemon has served programs. Now it stands still.
	ctx, cancel := context.WithTimeout(context.Background(), freezeTime)
	defer cancel()
	d.measured.collector.Refresh(0)
	began := time.Now()
	guests, err := vm.Pause(ctx, d.machines)
	if err != nil {
		return err
	}
	defer guests.Resume()
	frozen, err := d.server.Freeze(ctx)
	if err != nil {
		return err
	}
	defer frozen.Resume()
	nics, err := d.provisioner.Freeze(ctx)
	if err != nil {
		return err
	}
	defer nics.Resume()
	if err := guests.Freeze(ctx); err != nil {
		return err
	}
	bound, err := d.workloads.freeze()
	if err != nil {
		return err
	}
	return d.engine.Halt(ctx, func() error {
		st := daemonState{Engine: d.engine.Freeze(), Bound: bound}
		var fds []int
		var err error
		if st.Server, fds, err = frozen.Snapshot(); err != nil {
			return err
		}
		add := func(fd int) server.FD {
			fds = append(fds, fd)
			return server.FD(len(fds))
		}
		if st.NICs, err = nics.Snapshot(add); err != nil {
			return err
		}
		if st.Guests, err = guests.Snapshot(add); err != nil {
			return err
		}
		used := d.measured.collector.Meter().Freeze()
		st.Meter = &used
		link.SetDeadline(time.Now().Add(restoreTime))
		if err := link.Send(handover.State, st, fds); err != nil {
			return err
		}
		if _, err := link.Receive(handover.Restored, nil); err != nil {
			return err
		}
		if err := link.Send(handover.Go, nil, nil); err != nil {
			return err
		}
		s.leave(next.Pid, time.Since(began))
		return nil
	})
}

// leave ends the process. What it has is the next daemon's.
func (s *succession) leave(next int, blackout time.Duration) {
	s.d.log.Info("handed over", "pid", next, "blackout", blackout)
	s.d.tell(systemd.MainPID(next))
	if c := s.asker.Load(); c != nil {
		c.SendJSON(protocol.Upgrade{Pid: next, Blackout: blackout})
	}
	os.Exit(0)
}

// release closes the files that the next daemon opens. restore undoes it.
func (s *succession) release() (restore func(), err error) {
	var lent []lender
	restore = func() {
		for _, l := range slices.Backward(lent) {
			if err := l.Reclaim(); err != nil {
				s.d.log.Error("a file of the daemon cannot be opened again: restart the daemon", "error", err)
			}
		}
	}
	for _, l := range []lender{s.d.store.Store.(lender), s.d.measured.collector.Meter()} {
		lent = append(lent, l)
		if err := l.Release(); err != nil {
			return restore, err
		}
	}
	return restore, nil
}

// offer is what the next daemon opens instead of new sockets and locks, and the descriptors.
func (s *succession) offer() (o offer, fds []int) {
	d := s.d
	add := func(fd int) server.FD {
		fds = append(fds, fd)
		return server.FD(len(fds))
	}
	o = offer{Header: state.Own(d.Version), Listeners: make(map[string]server.FD), GUID: d.device.NodeGUID, Boot: d.plane.Boot(), Seed: d.seed}
	if e, ok := d.store.Store.(*etcd.Store); ok {
		o.Leases = e.Leases()
	}
	o.Claim = add(int(d.claim.File().Fd()))
	sockets, kept := d.server.Inherited()
	for path, fd := range sockets {
		o.Listeners[path] = add(fd)
	}
	o.Kept = kept
	for _, u := range []*roce.UDP{d.port.udp, d.between.udp.Load()} {
		if u == nil {
			continue
		}
		for addr, sockets := range u.Sockets() {
			o.UDP = append(o.UDP, udpOf(addr, u.Port(), sockets, add))
		}
	}
	if d.ports != nil {
		o.UDP = append(o.UDP, udpOf(holdersAt, holdersPort, d.ports.Sockets(), add))
	}
	if held, port := d.between.holders(); len(held) > 0 {
		o.UDP = append(o.UDP, udpOf(holdersAt, port, held, add))
	}
	if t := d.between.tunnel.Load(); t != nil {
		for addr, sockets := range t.Sockets() {
			o.UDP = append(o.UDP, udpOf(addr, t.Port(), sockets, add))
		}
	}
	d.reloading.mu.Lock()
	defer d.reloading.mu.Unlock()
	if m := d.reloading.metrics; m != nil {
		if fd, err := m.Descriptor(); err == nil {
			o.Metrics = add(fd)
		}
	}
	return o, fds
}

func udpOf(addr netip.Addr, port uint16, sockets []int, add func(int) server.FD) udpOffer {
	u := udpOffer{Port: port}
	u.Addr, _ = addr.MarshalBinary() // never fails
	for _, fd := range sockets {
		u.Sockets = append(u.Sockets, add(fd))
	}
	return u
}

// duplicate returns another descriptor of f.
func duplicate(f *os.File) (int, error) { return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0) }

// Upgrade implements server.Succession.
func (s *succession) Upgrade(c *protocol.Conn, program string) {
	if !s.asker.CompareAndSwap(nil, c) {
		c.SendJSON(protocol.Upgrade{Error: errHanding.Error()})
		return
	}
	defer s.asker.Store(nil)
	err := s.obstacles(takes)
	if err == nil {
		// After a success this process ends before the next daemon.
		err = launch.Succeed(program, successorArgs(os.Args[1:]), s.d.service.notify.Environment())
		// The next daemon has ended. The answer follows when this one continues and accepts changes again.
		s.busy.Lock()
		defer s.busy.Unlock()
	}
	c.SendJSON(protocol.Upgrade{Error: err.Error()})
}

// successorArgs is the command line of the next daemon.
func successorArgs(args []string) []string {
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == takeoverFlag || a == "--detach" })
	return append(args, takeoverFlag)
}

// takeoverFlag makes a daemon take over from the one that serves its socket.
const takeoverFlag = "--takeover"
