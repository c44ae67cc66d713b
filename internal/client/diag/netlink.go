package diag

import (
	"cmp"
	"net"
	"slices"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/netlink"
	"vrdma.dev/vrdma/internal/client/uverbs"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/device/sysfs"
	"vrdma.dev/vrdma/internal/ib"
)

// A Looker is a program that looks at a device over netlink. It sees the objects of its own
// user's programs, those that live where it does: the same as a tool. It implements
// netlink.Source.
type Looker struct {
	desk *Desk
	who  credentials.Caller
	nic  *registry.NIC
}

// Looker returns how who sees n.
func (d *Desk) Looker(who *credentials.Caller, n *registry.NIC) *Looker { return &Looker{d, *who, n} }

var _ netlink.Source = (*Looker)(nil)

// The device is a channel adapter (RDMA_NODE_IB_CA), for which libibverbs shall take the rxe
// provider (RDMA_DRIVER_RXE).
const (
	nodeCA    = 1
	driverRXE = 14
)

// Device implements netlink.Source.
func (l *Looker) Device() netlink.Device {
	n := l.nic.Device
	return netlink.Device{
		Name: n.Name, Ports: 1, CapFlags: uverbs.DeviceCaps, NodeGUID: n.NodeGUID, SystemGUID: n.NodeGUID,
		NodeType: nodeCA, Protocol: "roce", UverbsDriverID: driverRXE,
	}
}

// Port implements netlink.Source.
func (l *Looker) Port() netlink.Port {
	p := netlink.Port{CapFlags: abi.PortCapCM, State: abi.PortActive, PhysState: abi.PhysStateLinkUp}
	// An interface has its name and number in one network namespace only.
	if gids := l.nic.Device.Face().GIDs; len(gids) > 0 && l.who.Home.Net != "" && l.who.Home.Net == credentials.Own().Whole.Net {
		if i, err := net.InterfaceByName(gids[0].NetDev); err == nil {
			p.NetDev, p.NetDevIndex = i.Name, uint32(i.Index)
		}
	}
	return p
}

// Chardev implements netlink.Source.
func (l *Looker) Chardev(name string) (netlink.Chardev, bool) {
	switch {
	case name == "uverbs":
		return netlink.Chardev{Name: "uverbs0", ABI: abi.RxeABIVersion, Major: abi.UverbsMajor, Minor: abi.UverbsMinor, OfDevice: true}, true
	case name == "rdma_cm" && l.nic.Manager != nil:
		return netlink.Chardev{Name: "rdma_cm", ABI: abi.CMABIVersion, Major: abi.CMMajor, Minor: abi.CMMinor}, true
	}
	return netlink.Chardev{}, false
}

// Counters implements netlink.Source.
func (l *Looker) Counters() (out []netlink.Counter) {
	for _, c := range l.desk.counters(l.nic, &l.desk.looks.users) {
		if c.Dir == sysfs.HWCounters {
			out = append(out, netlink.Counter{Name: c.Name, Value: c.Value})
		}
	}
	return out
}

// sees reports whether a program of NIC n is one that the looker sees.
func (l *Looker) sees(of *credentials.Caller, n *registry.NIC) bool {
	return n == l.nic && of.SameUser(&l.who) && l.pid(of) != 0
}

// sessions are those that the looker sees, oldest first.
func (l *Looker) sessions() []Session {
	out := slices.DeleteFunc(l.desk.cfg.Clients.Sessions(), func(s Session) bool { return !l.sees(s.Of, s.NIC) })
	slices.SortFunc(out, func(a, b Session) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// programs are those with rdma_cm that the looker sees.
func (l *Looker) programs() []Program {
	out := slices.DeleteFunc(l.desk.cfg.Clients.Programs(), func(p Program) bool { return p.CM == nil || !l.sees(p.Of, p.NIC) })
	slices.SortFunc(out, func(a, b Program) int { return cmp.Compare(a.Of.Pid, b.Of.Pid) })
	return out
}

// pid returns a process's number as the looker counts; 0: it does not see the process.
func (l *Looker) pid(of *credentials.Caller) uint32 { return uint32(l.who.Home.Sees(&of.Home)) }

// look runs f on the loop when it is the looker's turn.
func (l *Looker) look(f func()) { l.desk.looks.users.look(l.desk.cfg.Loop, f) }

// Counts implements netlink.Source.
func (l *Looker) Counts() (n netlink.Counts) {
	for _, ses := range l.sessions() {
		var c nic.Census
		l.look(func() { c = ses.Device.Census() })
		n[netlink.PD] += uint64(c.PDs)
		n[netlink.CQ] += uint64(c.CQs)
		n[netlink.QP] += uint64(c.QPs)
		n[netlink.MR] += uint64(c.MRs)
		n[netlink.SRQ] += uint64(c.SRQs)
		n[netlink.Ctx]++
	}
	l.Resources(netlink.CMID, func(list []netlink.Resource) bool {
		n[netlink.CMID] += uint64(len(list))
		return true
	})
	return n
}

// Resources implements netlink.Source. It gives the objects of one program at a time, so that neither the loop nor our
// memory holds more than one's.
func (l *Looker) Resources(k netlink.Kind, yield func([]netlink.Resource) bool) {
	if k == netlink.CMID {
		for _, p := range l.programs() {
			if !yield(l.identifiers(&p)) {
				return
			}
		}
		return
	}
	for _, ses := range l.sessions() {
		list := l.objects(&ses, k)
		slices.SortFunc(list, func(a, b netlink.Resource) int { return cmp.Compare(a.ID, b.ID) })
		for i := range list {
			list[i].Pid, list[i].Context = l.pid(ses.Of), uint32(ses.ID)
		}
		if !yield(list) {
			return
		}
	}
}

func (l *Looker) objects(ses *Session, k netlink.Kind) (out []netlink.Resource) {
	switch k {
	case netlink.Ctx:
		return []netlink.Resource{{ID: uint32(ses.ID)}}
	case netlink.PD:
		return gather(l, ses.Device.ListPDs, func(p nic.PDStatus) netlink.Resource {
			return netlink.Resource{ID: p.Serial, Users: uint64(p.Users)}
		})
	case netlink.CQ:
		return gather(l, ses.Device.ListCQs, func(c nic.CQStatus) netlink.Resource {
			return netlink.Resource{ID: c.Serial, CQE: c.CQE, Users: uint64(c.Users)}
		})
	case netlink.MR:
		return gather(l, ses.Device.ListMRs, func(m nic.MRStatus) netlink.Resource {
			return netlink.Resource{ID: m.Serial, PD: m.PD, Length: m.Length}
		})
	case netlink.SRQ:
		return gather(l, ses.Device.ListSRQs, func(q nic.SRQStatus) netlink.Resource {
			return netlink.Resource{ID: q.Num, PD: q.PD, Type: abi.SRQTypeBasic, QPs: q.QPs}
		})
	case netlink.QP:
		return gather(l, ses.Device.ListQPs, func(q nic.QPBrief) netlink.Resource {
			return netlink.Resource{
				ID: q.Num, PD: q.PD, Port: uint32(q.Port), RemoteQPN: q.DestQPN, RecvPSN: q.RecvPSN, SendPSN: q.SendPSN,
				Type: q.Type.QPType(), State: uint8(q.State), Path: q.PathMig, Connected: q.Type != ib.UD,
			}
		})
	}
	return nil
}

// gather lists objects on the loop and describes them elsewhere.
func gather[T any](l *Looker, list func() []T, describe func(T) netlink.Resource) []netlink.Resource {
	var found []T
	l.look(func() { found = list() })
	out := make([]netlink.Resource, len(found))
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

func (l *Looker) identifiers(p *Program) []netlink.Resource {
	var ids []rdmacm.Status
	l.look(func() { ids = p.CM.Status() })
	slices.SortFunc(ids, func(a, b rdmacm.Status) int { return cmp.Compare(a.Serial, b.Serial) })
	out := make([]netlink.Resource, len(ids))
	for i, id := range ids {
		out[i] = netlink.Resource{
			ID: id.Serial, Pid: l.pid(p.Of), QPN: id.QPN, Type: id.QPType, State: cmStates[id.Stage],
			PortSpace: uint32(id.Space), Src: id.Src, Dst: id.Dst,
		}
		if id.Device {
			out[i].Port = 1
		}
	}
	return out
}
