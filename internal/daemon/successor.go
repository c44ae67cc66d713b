package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/client/vm"
	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/handover"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/tenancy/meter"
	"vrdma.dev/vrdma/internal/tenancy/provision"
)

// A live upgrade, the next daemon's side. predecessor.go has the other side, package handover the conversation.

// greeting is the next daemon's first message.
type greeting struct {
	Header state.Header `cbor:"1,keyasint,omitempty"` // of what it writes
	Pid    int          `cbor:"2,keyasint,omitempty"`
	Takes  []string     `cbor:"3,keyasint,omitempty"` // what it can take over, of the constants below
}

// What not every version can take over. A daemon that has it hands over only to one that names it in its greeting.
const (
	takesEtcd   = "etcd"   // the registration in etcd
	takesTunnel = "tunnel" // the sockets of encrypted networks
	// takesContainers: interfaces of containers, and network namespaces that give NICs their addresses.
	takesContainers = "containers"
	takesCards      = "cards"  // network cards of virtual machines without an agent
	takesGuests     = "guests" // virtual machines with an agent
)

// takes is all that this version can take over.
var takes = []string{takesEtcd, takesTunnel, takesContainers, takesCards, takesGuests}

// offer is what the next daemon opens instead of new sockets and locks.
type offer struct {
	Header    state.Header         `cbor:"1,keyasint,omitempty"` // of the state that follows
	Claim     server.FD            `cbor:"2,keyasint,omitempty"` // the lock of the place
	Listeners map[string]server.FD `cbor:"3,keyasint,omitempty"` // by path
	UDP       []udpOffer           `cbor:"4,keyasint,omitempty"`
	Metrics   server.FD            `cbor:"5,keyasint,omitempty"`
	GUID      uint64               `cbor:"6,keyasint,omitempty"` // of the default NIC
	Kept      []string             `cbor:"7,keyasint,omitempty"` // paths of listeners that the service manager keeps
	Boot      string               `cbor:"8,keyasint,omitempty"` // of the control plane
	Leases    map[string]int64     `cbor:"9,keyasint,omitempty"` // in etcd, by key
	Seed      []byte               `cbor:"10,keyasint,omitempty"`
}

// udpOffer is the sockets of an address.
type udpOffer struct {
	Addr    []byte      `cbor:"1,keyasint,omitempty"` // as netip.Addr marshals it
	Port    uint16      `cbor:"2,keyasint,omitempty"`
	Sockets []server.FD `cbor:"3,keyasint,omitempty"` // the receiving one first
}

// daemonState is the state of a daemon.
type daemonState struct {
	Server *server.State       `cbor:"1,keyasint,omitempty"`
	Engine *engine.EngineState `cbor:"2,keyasint,omitempty"`
	Meter  *meter.State        `cbor:"3,keyasint,omitempty"`
	NICs   *provision.State    `cbor:"4,keyasint,omitempty"`
	Bound  []byte              `cbor:"5,keyasint,omitempty"` // the bindings of NICs to containers, as JSON
	Guests []vm.State          `cbor:"6,keyasint,omitempty"` // of --guest
}

// A successor is a daemon that takes over from a running one. Until it is done nothing may be undone when it ends: its
// sockets and files are the other daemon's.
type successor struct {
	link    *handover.Link
	offer   offer
	files   []*os.File // of offer; nil once used
	scraped *os.File   // the socket of the metrics, once the state is restored; nil: none
	done    bool       // the other daemon has ended, or is about to
}

// The limits of waiting for the other daemon.
const (
	offerTime   = 10 * time.Second // until it offers its sockets
	prepareTime = time.Minute      // for the next daemon to open everything
	freezeTime  = 5 * time.Second  // for commands to end
	restoreTime = 20 * time.Second // for the next daemon to restore the state
)

// succeed asks the daemon that serves the place to hand over.
func (s *settings) succeed() (*successor, error) {
	fail := func(err error) (*successor, error) {
		return nil, exit.Lacks("cannot take over from the daemon at %s: %w", s.place.Socket, err)
	}
	c, err := protocol.DialHandOver(s.place.Socket)
	if err != nil {
		return fail(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(offerTime))
	var b [1]byte
	_, fds, err := c.ReadMessage(b[:])
	if err != nil || len(fds) != 1 {
		protocol.CloseFDs(fds)
		return fail(errors.Join(errors.New("it offers no connection"), err))
	}
	link, err := handover.Open(os.NewFile(uintptr(fds[0]), "handover"))
	if err != nil {
		return fail(err)
	}
	h := &successor{link: link}
	link.SetDeadline(time.Now().Add(offerTime))
	if err = link.Send(handover.Hello, greeting{state.Own(s.Version), os.Getpid(), takes}, nil); err == nil {
		h.files, err = link.Receive(handover.Offer, &h.offer)
	}
	if err == nil {
		err = h.offer.Header.Check()
	}
	if err != nil {
		link.Refuse(err)
		link.Close()
		return fail(err)
	}
	s.device.NodeGUID = h.offer.GUID
	if h.offer.Seed != nil {
		s.seed = h.offer.Seed
	}
	return h, nil
}

// file takes a descriptor of the offer; nil: there is none.
func (h *successor) file(fd server.FD) *os.File {
	if h == nil || fd == 0 || int(fd) > len(h.files) {
		return nil
	}
	f := h.files[fd-1]
	h.files[fd-1] = nil
	return f
}

// metrics takes the socket of the metrics; nil: there is none.
func (h *successor) metrics() *os.File {
	if h == nil {
		return nil
	}
	f := h.scraped
	h.scraped = nil
	return f
}

// boot is that of the other daemon's control plane; "": there is none.
func (h *successor) boot() string {
	if h == nil {
		return ""
	}
	return h.offer.Boot
}

// leases are those of the other daemon in etcd.
func (h *successor) leases() map[string]int64 {
	if h == nil {
		return nil
	}
	return h.offer.Leases
}

// inherited are the sockets for programs and tools; nil: there are none.
func (h *successor) inherited() server.Inherited {
	if h == nil {
		return nil
	}
	return h
}

// sockets are the options of this host's sockets.
func (s *settings) sockets() roce.UDPOptions {
	o := roce.UDPOptions{NoGSO: s.NoGSO, NoGRO: s.NoGRO, Shards: s.loops, Ports: s.ports}
	if s.from != nil {
		o.Inherited = s.from.sockets
	}
	return o
}

// claim takes the place over.
func (h *successor) claim(p launch.Place) (*launch.Claim, error) {
	f := h.file(h.offer.Claim)
	if f == nil {
		return nil, errors.New("the other daemon does not hold the lock")
	}
	return p.Inherit(f, h.kept(p.Socket))
}

// Listener implements server.Inherited.
func (h *successor) Listener(path string) (f *os.File, kept bool) {
	return h.file(h.offer.Listeners[path]), h.kept(path)
}

// kept reports whether the service manager made the socket at a path, and keeps it.
func (h *successor) kept(path string) bool { return h != nil && slices.Contains(h.offer.Kept, path) }

// sockets returns the sockets of an address, for roce.UDPOptions.
func (h *successor) sockets(port uint16, addr netip.Addr) (fds []int) {
	for i := range h.offer.UDP {
		var at netip.Addr
		o := &h.offer.UDP[i]
		if at.UnmarshalBinary(o.Addr) != nil || at != addr || o.Port != port {
			continue
		}
		for _, fd := range o.Sockets {
			f := h.file(fd)
			if f == nil {
				return nil
			}
			n, err := duplicate(f)
			f.Close()
			if err != nil {
				return nil
			}
			fds = append(fds, n)
		}
	}
	return fds
}

// take restores the state of the other daemon, which ends. Everything is open, and nothing is served yet.
func (h *successor) take(d *daemon) error {
	if err := d.makeGuests(); err != nil {
		return err
	}
	h.link.SetDeadline(time.Now().Add(freezeTime + restoreTime))
	if err := h.link.Send(handover.Ready, nil, nil); err != nil {
		return err
	}
	var st daemonState
	files, err := h.link.Receive(handover.State, &st)
	if err != nil {
		return err
	}
	if st.Server == nil {
		return errors.New("the other daemon has sent no state")
	}
	// The loop restores the sessions, and serves them only after the other daemon has ended.
	var commit, contain, serve func()
	var guests *vm.Thawed
	var rules []engine.Guarded
	perr := d.engine.Do(func() {
		if err = d.engine.Listen(); err != nil {
			return
		}
		contain, err = d.thawNICs(&st, files)
		if err == nil && st.Engine != nil {
			err = d.engine.Thaw(st.Engine)
		}
		if err != nil {
			return
		}
		if guests, err = vm.Thaw(d.machines, st.Guests, files); err != nil {
			return
		}
		if commit, serve, err = d.server.Thaw(st.Server, files, guests); err != nil {
			return
		}
		if err = h.link.Send(handover.Restored, nil, nil); err != nil {
			return
		}
		if _, err = h.link.Receive(handover.Go, nil); err != nil {
			return
		}
		h.done = true
		commit()
		contain()
		if terr := d.between.begin(); terr != nil {
			d.log.Error("encrypted networks stay on this host: the tunnel cannot be opened", "error", terr)
		}
		for _, n := range d.nics.All() {
			if g := n.Device.Guard(); g != nil {
				rules = append(rules, engine.Guarded{NIC: n.Device, Guard: g})
			}
		}
	})
	if err = errors.Join(err, perr); err != nil {
		return err
	}
	if st.Meter != nil {
		d.measured.collector.Meter().Thaw(st.Meter)
	}
	if err := d.claim.Sign(d.Ephemeral); err != nil {
		d.log.Warn("the file with the daemon's process number is not current", "error", err)
	}
	h.scraped = h.file(h.offer.Metrics)
	handover.CloseAll(h.files)
	h.files = nil
	h.link.Close()
	serve()
	guests.Continue(func(nic string, err error) {
		d.log.Error("virtual machines cannot connect: the sockets cannot be opened", "nic", nic, "error", err)
	})
	d.workloads.thaw(st.Bound)
	d.provisioner.Sweep()
	d.plane.Continue()
	// The rules may differ from those that the connections were made under.
	return d.engine.SetGuards(rules)
}

// thawNICs restores what the NICs have of containers. The engine's state has the numbers of network namespaces in the
// other daemon, and gets those in this one. It runs on the loop.
func (d *daemon) thawNICs(st *daemonState, files []*os.File) (commit func(), err error) {
	if st.NICs == nil { // of an older daemon: no container has a NIC
		st.NICs = new(provision.State)
	}
	commit, number, err := d.provisioner.Thaw(st.NICs, files)
	if err == nil && st.Engine != nil {
		for i := range st.Engine.Peers {
			p := &st.Engine.Peers[i]
			p.Network = number(p.Network)
		}
	}
	return commit, err
}

// abandon ends a daemon that cannot take over. It undoes nothing, because the other daemon continues with the same
// sockets and files.
func (h *successor) abandon(err error) {
	h.link.Refuse(err)
	launch.Ready(err)
	fmt.Fprintln(os.Stderr, "vrdma: the other daemon continues:", err)
	os.Exit(1)
}
