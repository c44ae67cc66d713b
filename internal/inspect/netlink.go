package inspect

import (
	"cmp"
	"net"
	"slices"

	"vrdma/internal/abi"
	"vrdma/internal/caller"
	"vrdma/internal/devicetree"
	"vrdma/internal/ib"
	"vrdma/internal/nic"
	"vrdma/internal/order"
	"vrdma/internal/rdmacm"
	"vrdma/internal/rdmanl"
	"vrdma/internal/uverbs"
	"vrdma/internal/vnic"
)

// A Looker is a program that looks at a device over netlink. It sees the objects of its own
// user's programs, those that live where it does: the same as a tool. It implements
// rdmanl.Source.
type Looker struct {
	desk *Desk
	who  caller.Caller
	nic  *vnic.NIC
}

// Looker is how who sees n.
func (d *Desk) Looker(who *caller.Caller, n *vnic.NIC) *Looker { return &Looker{d, *who, n} }

var _ rdmanl.Source = (*Looker)(nil)

// The device is a channel adapter (RDMA_NODE_IB_CA), for which libibverbs shall take the rxe
// provider (RDMA_DRIVER_RXE).
const (
	nodeCA    = 1
	driverRXE = 14
)

// Device implements rdmanl.Source.
func (l *Looker) Device() rdmanl.Device {
	n := l.nic.Device
	return rdmanl.Device{
		Name: n.Name, Ports: 1, CapFlags: uverbs.DeviceCaps, NodeGUID: n.NodeGUID, SystemGUID: n.NodeGUID,
		NodeType: nodeCA, Protocol: "roce", UverbsDriverID: driverRXE,
	}
}

// Port implements rdmanl.Source.
func (l *Looker) Port() rdmanl.Port {
	p := rdmanl.Port{CapFlags: abi.PortCapCM, State: abi.PortActive, PhysState: abi.PhysStateLinkUp}
	// An interface has its name and number in one network namespace only.
	if gids := l.nic.Device.Face().GIDs; len(gids) > 0 && l.who.Home.Net != "" && l.who.Home.Net == caller.Own().Whole.Net {
		if i, err := net.InterfaceByName(gids[0].NetDev); err == nil {
			p.NetDev, p.NetDevIndex = i.Name, uint32(i.Index)
		}
	}
	return p
}

// Chardev implements rdmanl.Source.
func (l *Looker) Chardev(name string) (rdmanl.Chardev, bool) {
	switch {
	case name == "uverbs":
		return rdmanl.Chardev{Name: "uverbs0", ABI: abi.RxeABIVersion, Major: abi.UverbsMajor, Minor: abi.UverbsMinor, OfDevice: true}, true
	case name == "rdma_cm" && l.nic.Manager != nil:
		return rdmanl.Chardev{Name: "rdma_cm", ABI: abi.CMABIVersion, Major: abi.CMMajor, Minor: abi.CMMinor}, true
	}
	return rdmanl.Chardev{}, false
}

// Counters implements rdmanl.Source.
func (l *Looker) Counters() (out []rdmanl.Counter) {
	for _, c := range l.desk.counters(l.nic, &l.desk.looks.users) {
		if c.Dir == devicetree.HWCounters {
			out = append(out, rdmanl.Counter{Name: c.Name, Value: c.Value})
		}
	}
	return out
}

// sees reports whether a program of NIC n is one that the looker sees.
func (l *Looker) sees(of *caller.Caller, n *vnic.NIC) bool {
	return n == l.nic && of.SameUser(&l.who) && l.pid(of) != 0
}

// sessions are those that the looker sees, oldest first.
func (l *Looker) sessions() []Session {
	out := slices.DeleteFunc(l.desk.cfg.Clients.Sessions(), func(s Session) bool { return !l.sees(s.Of, s.NIC) })
	order.SortFunc(out, func(a, b Session) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// programs are those with rdma_cm that the looker sees.
func (l *Looker) programs() []Program {
	out := slices.DeleteFunc(l.desk.cfg.Clients.Programs(), func(p Program) bool { return p.CM == nil || !l.sees(p.Of, p.NIC) })
	order.SortFunc(out, func(a, b Program) int { return cmp.Compare(a.Of.Pid, b.Of.Pid) })
	return out
}

// pid is a process's number as the looker counts; 0: it does not see the process.
func (l *Looker) pid(of *caller.Caller) uint32 { return uint32(l.who.Home.Sees(&of.Home)) }

// look runs f on the loop when it is the looker's turn.
func (l *Looker) look(f func()) { l.desk.looks.users.look(l.desk.cfg.Loop, f) }

// Counts implements rdmanl.Source.
func (l *Looker) Counts() (n rdmanl.Counts) {
	for _, ses := range l.sessions() {
		var c nic.Census
		l.look(func() { c = ses.Device.Census() })
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

// Resources implements rdmanl.Source. It gives the objects of one program at a time, so that neither the loop nor our
// memory holds more than one's.
func (l *Looker) Resources(k rdmanl.Kind, yield func([]rdmanl.Resource) bool) {
	if k == rdmanl.CMID {
		for _, p := range l.programs() {
			if !yield(l.identifiers(&p)) {
				return
			}
		}
		return
	}
	for _, ses := range l.sessions() {
		list := l.objects(&ses, k)
		order.SortFunc(list, func(a, b rdmanl.Resource) int { return cmp.Compare(a.ID, b.ID) })
		for i := range list {
			list[i].Pid, list[i].Context = l.pid(ses.Of), uint32(ses.ID)
		}
		if !yield(list) {
			return
		}
	}
}

func (l *Looker) objects(ses *Session, k rdmanl.Kind) (out []rdmanl.Resource) {
	switch k {
	case rdmanl.Ctx:
		return []rdmanl.Resource{{ID: uint32(ses.ID)}}
	case rdmanl.PD:
		return gather(l, ses.Device.ListPDs, func(p nic.PDStatus) rdmanl.Resource {
			return rdmanl.Resource{ID: p.Serial, Users: uint64(p.Users)}
		})
	case rdmanl.CQ:
		return gather(l, ses.Device.ListCQs, func(c nic.CQStatus) rdmanl.Resource {
			return rdmanl.Resource{ID: c.Serial, CQE: c.CQE, Users: uint64(c.Users)}
		})
	case rdmanl.MR:
		return gather(l, ses.Device.ListMRs, func(m nic.MRStatus) rdmanl.Resource {
			return rdmanl.Resource{ID: m.Serial, PD: m.PD, Length: m.Length}
		})
	case rdmanl.SRQ:
		return gather(l, ses.Device.ListSRQs, func(q nic.SRQStatus) rdmanl.Resource {
			return rdmanl.Resource{ID: q.Num, PD: q.PD, Type: abi.SRQTypeBasic, QPs: q.QPs}
		})
	case rdmanl.QP:
		return gather(l, ses.Device.ListQPs, func(q nic.QPBrief) rdmanl.Resource {
			return rdmanl.Resource{
				ID: q.Num, PD: q.PD, Port: uint32(q.Port), RemoteQPN: q.DestQPN, RecvPSN: q.RecvPSN, SendPSN: q.SendPSN,
				Type: q.Type.QPType(), State: uint8(q.State), Path: q.PathMig, Connected: q.Type != ib.UD,
			}
		})
	}
	return nil
}

// gather lists objects on the loop and describes them elsewhere.
func gather[T any](l *Looker, list func() []T, describe func(T) rdmanl.Resource) []rdmanl.Resource {
	var found []T
	l.look(func() { found = list() })
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

func (l *Looker) identifiers(p *Program) []rdmanl.Resource {
	var ids []rdmacm.Status
	l.look(func() { ids = p.CM.Status() })
	order.SortFunc(ids, func(a, b rdmacm.Status) int { return cmp.Compare(a.Serial, b.Serial) })
	out := make([]rdmanl.Resource, len(ids))
	for i, id := range ids {
		out[i] = rdmanl.Resource{
			ID: id.Serial, Pid: l.pid(p.Of), QPN: id.QPN, Type: id.QPType, State: cmStates[id.Stage],
			PortSpace: uint32(id.Space), Src: id.Src, Dst: id.Dst,
		}
		if id.Device {
			out[i].Port = 1
		}
	}
	return out
}
