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

// A Looker is a program that queries a device over netlink. It sees the objects of its own user's programs in its namespaces, as
// a tool does. It implements netlink.Source.
type Looker struct {
	service *Service
	who     credentials.Caller
	nic     *registry.NIC
}

// Looker returns the view of n for the program who.
func (d *Service) Looker(who *credentials.Caller, n *registry.NIC) *Looker {
	return &Looker{d, *who, n}
}

var _ netlink.Source = (*Looker)(nil)

// The device is a channel adapter (RDMA_NODE_IB_CA) with rxe's driver ID (RDMA_DRIVER_RXE), so that libibverbs uses the rxe provider.
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
	if l.nic.Device.Face().Down {
		p.State, p.PhysState = abi.PortDown, abi.PhysStateDisabled
	}
	// The name and number of an interface are valid only in its network namespace.
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
	for _, c := range l.service.counters(l.nic, &l.service.looks.users) {
		if c.Dir == sysfs.HWCounters {
			out = append(out, netlink.Counter{Name: c.Name, Value: c.Value})
		}
	}
	return out
}

// sees reports whether the looker sees a program of NIC n.
func (l *Looker) sees(of *credentials.Caller, n *registry.NIC) bool {
	return n == l.nic && of.SameUser(&l.who) && l.pid(of) != 0
}

// sessions returns the sessions that the looker sees, oldest first.
func (l *Looker) sessions() []Session {
	out := slices.DeleteFunc(l.service.cfg.Clients.Sessions(), func(s Session) bool { return !l.sees(s.Of, s.NIC) })
	slices.SortFunc(out, func(a, b Session) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// programs returns the programs with rdma_cm that the looker sees.
func (l *Looker) programs() []Program {
	out := slices.DeleteFunc(l.service.cfg.Clients.Programs(), func(p Program) bool { return p.CM == nil || !l.sees(p.Of, p.NIC) })
	slices.SortFunc(out, func(a, b Program) int { return cmp.Compare(a.Of.Pid, b.Of.Pid) })
	return out
}

// pid returns a process ID in the looker's pid namespace; 0: the looker does not see the process.
func (l *Looker) pid(of *credentials.Caller) uint32 { return uint32(l.who.Home.Sees(&of.Home)) }

// look runs f on the loop, subject to the throttle.
func (l *Looker) look(f func()) { l.service.looks.users.look(l.service.cfg.Loop, f) }

// Counts implements netlink.Source.
func (l *Looker) Counts() (n netlink.Counts) {
	for _, ses := range l.sessions() {
		var c nic.Census
		l.look(func() { c = ses.Device.Objects().Census() })
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

// Resources implements netlink.Source. It returns the objects of one program at a time, to limit the time on the loop and the memory.
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
		return gather(l, ses.Device.Objects().PDs, func(p nic.PDStatus) netlink.Resource {
			return netlink.Resource{ID: p.Serial, Users: uint64(p.Users)}
		})
	case netlink.CQ:
		return gather(l, ses.Device.Objects().CQs, func(c nic.CQStatus) netlink.Resource {
			return netlink.Resource{ID: c.Serial, CQE: c.CQE, Users: uint64(c.Users)}
		})
	case netlink.MR:
		return gather(l, ses.Device.Objects().MRs, func(m nic.MRStatus) netlink.Resource {
			return netlink.Resource{ID: m.Serial, PD: m.PD, Length: m.Length}
		})
	case netlink.SRQ:
		return gather(l, ses.Device.Objects().SRQs, func(q nic.SRQStatus) netlink.Resource {
			return netlink.Resource{ID: q.Num, PD: q.PD, Type: abi.SRQTypeBasic, QPs: q.QPs}
		})
	case netlink.QP:
		return gather(l, ses.Device.Objects().QPs, func(q nic.QPBrief) netlink.Resource {
			return netlink.Resource{
				ID: q.Num, PD: q.PD, Port: uint32(q.Port), RemoteQPN: q.DestQPN, RecvPSN: q.RecvPSN, SendPSN: q.SendPSN,
				Type: q.Type.QPType(), State: uint8(q.State), Path: q.PathMig, Connected: q.Type != ib.UD,
			}
		})
	}
	return nil
}

// gather lists objects on the loop and describes them outside of it.
func gather[T any](l *Looker, list func() []T, describe func(T) netlink.Resource) []netlink.Resource {
	var found []T
	l.look(func() { found = list() })
	out := make([]netlink.Resource, len(found))
	for i, v := range found {
		out[i] = describe(v)
	}
	return out
}

// cmStates maps states to enum rdma_cm_state.
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
