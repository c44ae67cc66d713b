package frontdoor

import (
	"cmp"
	"net"
	"slices"
	"time"

	"vrdma/internal/abi"
	"vrdma/internal/channel"
	"vrdma/internal/devicetree"
	"vrdma/internal/nic"
	"vrdma/internal/rdmacm"
	"vrdma/internal/rdmanl"
	"vrdma/internal/transport"
	"vrdma/internal/uverbs"
)

// netlinkPatience is how long a program may leave an answer unread.
const netlinkPatience = 10 * time.Second

// serveNetlink is one socket of NETLINK_RDMA. It holds nothing and keeps nothing alive.
func (s *Server) serveNetlink(c *channel.Conn, who peer) error {
	w := welcome()
	if err := c.WriteMessage(w.Append(nil)); err != nil {
		return nil
	}
	for {
		buf, n, err := receive(c)
		if err != nil {
			return nil
		}
		err = rdmanl.Answer((*buf)[:n], &looker{s: s, who: who, at: placeOf(who.pid)}, func(b []byte) error {
			c.SetWriteDeadline(time.Now().Add(netlinkPatience))
			return c.WriteMessage(b)
		})
		buffers.Put(buf)
		if err != nil {
			return nil
		}
	}
}

// A looker is a program that looks at the device over netlink. It sees the objects of its
// own user's programs, those that it could see with ps: in its own process namespace, or
// below it if that is ours. It implements rdmanl.Source.
type looker struct {
	s   *Server
	who peer
	at  place
}

var _ rdmanl.Source = (*looker)(nil)

// The device is a channel adapter (RDMA_NODE_IB_CA), for which libibverbs shall take the rxe
// provider (RDMA_DRIVER_RXE).
const (
	nodeCA    = 1
	driverRXE = 14
)

func (l *looker) Device() rdmanl.Device {
	n := l.s.cfg.NIC
	return rdmanl.Device{
		Name: n.Name, Ports: 1, CapFlags: uverbs.DeviceCaps, NodeGUID: n.NodeGUID, SystemGUID: n.NodeGUID,
		NodeType: nodeCA, Protocol: "roce", UverbsDriverID: driverRXE,
	}
}

func (l *looker) Port() rdmanl.Port {
	p := rdmanl.Port{CapFlags: abi.PortCapCM, State: abi.PortActive, PhysState: abi.PhysStateLinkUp}
	// An interface has its name and number in one network namespace only.
	if gids := l.s.cfg.NIC.GIDs; len(gids) > 0 && l.at.net != "" && l.at.net == here().net {
		if i, err := net.InterfaceByName(gids[0].NetDev); err == nil {
			p.NetDev, p.NetDevIndex = i.Name, uint32(i.Index)
		}
	}
	return p
}

func (l *looker) Chardev(name string) (rdmanl.Chardev, bool) {
	switch {
	case name == "uverbs":
		return rdmanl.Chardev{Name: "uverbs0", ABI: abi.RxeABIVersion, Major: abi.UverbsMajor, Minor: abi.UverbsMinor, OfDevice: true}, true
	case name == "rdma_cm" && l.s.cfg.CMA != nil:
		return rdmanl.Chardev{Name: "rdma_cm", ABI: abi.CMABIVersion, Major: abi.CMMajor, Minor: abi.CMMinor}, true
	}
	return rdmanl.Chardev{}, false
}

func (l *looker) Counters() (out []rdmanl.Counter) {
	for _, c := range l.s.countersThrough(&l.s.looks.users) {
		if c.Dir == devicetree.HWCounters {
			out = append(out, rdmanl.Counter{Name: c.Name, Value: c.Value})
		}
	}
	return out
}

// sessions are those that the looker sees, oldest first.
func (l *looker) sessions() []*session {
	l.s.mu.Lock()
	var out []*session
	for ses := range l.s.sessions {
		if ses.proc.uid == l.who.uid {
			out = append(out, ses)
		}
	}
	l.s.mu.Unlock()
	out = slices.DeleteFunc(out, func(ses *session) bool { return l.pid(ses.proc.pid) == 0 })
	slices.SortFunc(out, func(a, b *session) int { return cmp.Compare(a.id, b.id) })
	return out
}

// clients are those of rdma_cm that the looker sees.
func (l *looker) clients() []*process {
	l.s.mu.Lock()
	var out []*process
	for _, p := range l.s.processes {
		if p.uid == l.who.uid && p.cm != nil {
			out = append(out, p)
		}
	}
	l.s.mu.Unlock()
	out = slices.DeleteFunc(out, func(p *process) bool { return l.pid(p.pid) == 0 })
	slices.SortFunc(out, func(a, b *process) int { return cmp.Compare(a.pid, b.pid) })
	return out
}

// pid is a process's number as the looker counts; 0: it does not see the process.
func (l *looker) pid(of int) uint32 { return uint32(l.at.sees(of)) }

func (l *looker) Counts() (n rdmanl.Counts) {
	for _, ses := range l.sessions() {
		var c nic.Census
		l.s.looks.users.visit(l.s, func() { c = ses.dev.Census() })
		n[rdmanl.PD] += uint64(c.PDs)
		n[rdmanl.CQ] += uint64(c.CQs)
		n[rdmanl.QP] += uint64(c.QPs)
		n[rdmanl.MR] += uint64(c.MRs)
		n[rdmanl.SRQ] += uint64(c.SRQs)
		n[rdmanl.Ctx]++
	}
	l.Resources(rdmanl.CMID, func(list []rdmanl.Resource) bool {
		n[rdmanl.CMID] += uint64(len(list))
		return true
	})
	return n
}

// Resources gives the objects of one program at a time, so that neither the loop nor our
// memory holds more than one's.
func (l *looker) Resources(k rdmanl.Kind, yield func([]rdmanl.Resource) bool) {
	if k == rdmanl.CMID {
		for _, p := range l.clients() {
			if !yield(l.identifiers(p)) {
				return
			}
		}
		return
	}
	for _, ses := range l.sessions() {
		list := l.objects(ses, k)
		slices.SortFunc(list, func(a, b rdmanl.Resource) int { return cmp.Compare(a.ID, b.ID) })
		for i := range list {
			list[i].Pid, list[i].Context = l.pid(ses.proc.pid), uint32(ses.id)
		}
		if !yield(list) {
			return
		}
	}
}

func (l *looker) objects(ses *session, k rdmanl.Kind) (out []rdmanl.Resource) {
	switch k {
	case rdmanl.Ctx:
		return []rdmanl.Resource{{ID: uint32(ses.id)}}
	case rdmanl.PD:
		return gather(l.s, ses.dev.ListPDs, func(p nic.PDStatus) rdmanl.Resource {
			return rdmanl.Resource{ID: p.Serial, Users: uint64(p.Users)}
		})
	case rdmanl.CQ:
		return gather(l.s, ses.dev.ListCQs, func(c nic.CQStatus) rdmanl.Resource {
			return rdmanl.Resource{ID: c.Serial, CQE: c.CQE, Users: uint64(c.Users)}
		})
	case rdmanl.MR:
		return gather(l.s, ses.dev.ListMRs, func(m nic.MRStatus) rdmanl.Resource {
			return rdmanl.Resource{ID: m.Serial, PD: m.PD, Length: m.Length}
		})
	case rdmanl.SRQ:
		return gather(l.s, ses.dev.ListSRQs, func(q nic.SRQStatus) rdmanl.Resource {
			return rdmanl.Resource{ID: q.Num, PD: q.PD, Type: abi.SRQTypeBasic, QPs: q.QPs}
		})
	case rdmanl.QP:
		return gather(l.s, ses.dev.ListQPs, func(q nic.QPBrief) rdmanl.Resource {
			return rdmanl.Resource{
				ID: q.Num, PD: q.PD, Port: uint32(q.Port), RemoteQPN: q.DestQPN, RecvPSN: q.RecvPSN, SendPSN: q.SendPSN,
				Type: qpTypeNumbers[q.Type], State: uint8(q.State), Path: q.PathMig, Connected: q.Type != transport.UD,
			}
		})
	}
	return nil
}

var qpTypeNumbers = map[transport.Type]uint8{transport.RC: abi.QPTypeRC, transport.UC: abi.QPTypeUC, transport.UD: abi.QPTypeUD}

// gather lists objects on the loop and describes them elsewhere.
func gather[T any](s *Server, list func() []T, describe func(T) rdmanl.Resource) []rdmanl.Resource {
	var found []T
	s.looks.users.visit(s, func() { found = list() })
	out := make([]rdmanl.Resource, len(found))
	for i, v := range found {
		out[i] = describe(v)
	}
	return out
}

// cmStates are those of enum rdma_cm_state.
var cmStates = map[rdmacm.State]uint8{
	rdmacm.Idle: 0, rdmacm.Resolving: 1, rdmacm.Resolved: 2, rdmacm.Routed: 4, rdmacm.Connecting: 5,
	rdmacm.Disconnected: 6, rdmacm.Bound: 7, rdmacm.Listening: 8, rdmacm.Destroyed: 10,
}

func (l *looker) identifiers(p *process) []rdmanl.Resource {
	var ids []rdmacm.Status
	l.s.looks.users.visit(l.s, func() { ids = p.cm.Status() })
	slices.SortFunc(ids, func(a, b rdmacm.Status) int { return cmp.Compare(a.Serial, b.Serial) })
	out := make([]rdmanl.Resource, len(ids))
	for i, id := range ids {
		out[i] = rdmanl.Resource{
			ID: id.Serial, Pid: l.pid(p.pid), QPN: id.QPN, Type: id.QPType, State: cmStates[id.Stage],
			PortSpace: uint32(id.Space), Src: id.Src, Dst: id.Dst,
		}
		if id.Device {
			out[i].Port = 1
		}
	}
	return out
}
