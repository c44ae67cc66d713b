package diag

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"vrdma.dev/vrdma/internal/abi/abitext"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/peers"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/wire"
)

// visible returns the sessions in a view, oldest first.
func (d *Service) visible(v *View) []Session {
	sessions := slices.DeleteFunc(d.cfg.Clients.Sessions(), func(s Session) bool { return !v.session(&s) })
	slices.SortFunc(sessions, func(a, b Session) int { return cmp.Or(a.Opened.Compare(b.Opened), cmp.Compare(a.ID, b.ID)) })
	return sessions
}

// status describes the daemon and these sessions for a tool.
func (d *Service) status(v *View, sessions []Session) protocol.Status {
	st := protocol.Status{
		Version: d.cfg.Version, Protocol: protocol.Version, Pid: os.Getpid(), Socket: v.Socket, Started: d.started,
		Sessions: []protocol.SessionStatus{},
		Counters: map[string]uint64{},
	}
	if v.NIC != nil {
		d.device(&st, v)
	}
	// Tenants must not see the traffic of the whole host and the commands of all programs.
	if v.All || v.NIC != nil && v.NIC.Network == registry.HostNetwork {
		st.Refused = d.Refused.snapshot()
		d.peers(&st, v.All)
	}
	if list := d.nics(v); len(list) > 1 || len(list) == 1 && list[0].NIC != registry.Default {
		st.NICs = list
	}

	d.cfg.Clients.Recount()
	lines := v.Who.Account.Usage()
	if v.All {
		lines = d.cfg.Budget.Usage()
		st.Control = d.cfg.Control
		d.operation(&st)
		if d.cfg.Store != nil {
			st.Store = d.cfg.Store.StoreStatus()
		}
	}
	for _, l := range lines {
		st.Budgets = append(st.Budgets, protocol.BudgetStatus{Whose: l.Whose, Kind: l.Kind.String(), Used: l.Used, Limit: l.Limit})
	}
	for _, ses := range sessions {
		st.Sessions = append(st.Sessions, d.session(&ses, d.looks.of(v.All)))
	}
	st.Connections = d.connections(v)
	return st
}

// device describes the NIC of a view.
func (d *Service) device(st *protocol.Status, v *View) {
	n := v.NIC.Device
	f := n.Face() // read once: a container may change it meanwhile
	st.NIC, st.Network = v.NIC.Name, v.NIC.Network
	st.Device = protocol.DeviceStatus{
		Name: n.Name, NodeGUID: abitext.SysfsGUID(n.NodeGUID), State: "ACTIVE", LinkLayer: "Ethernet", MTU: 128 << f.MTU,
	}
	if f.Down {
		st.Device.State = "DOWN"
	}
	for i, g := range f.GIDs {
		st.Device.GIDs = append(st.Device.GIDs, protocol.GIDStatus{
			Index: f.Row(i), GID: abitext.GID(g.GID), Type: nic.GIDType, NetDev: g.NetDev,
		})
	}
	for _, c := range d.counters(v.NIC, d.looks.of(v.All)) {
		st.Counters[c.Name] = c.Value
	}
}

// featureNames are the names of extensions between vrdma hosts.
var featureNames = []struct {
	bit  uint32
	name string
}{{wire.FeatureRepair, "selective-repeat"}, {wire.FeaturePacedReads, "paced-reads"}, {wire.FeatureShortIDs, "short-ids"}, {wire.FeatureFiller, "filler"},
	{wire.FeatureLongFiller, "long-filler"}}

// peers describes other hosts, for callers that may see all, and adds the counters of hello messages.
func (d *Service) peers(st *protocol.Status, all bool) {
	var list []peers.Status
	var c peers.Counters
	var link roce.Counters
	d.looks.of(all).look(d.cfg.Loop, func() {
		list, c = d.cfg.Loop.Peers()
		link = d.cfg.Loop.LinkCounters()
	})
	o := link.Overlay
	for name, n := range map[string]uint64{
		"hello_asked": c.Asked, "hello_answered": c.Answered, "hello_limited": c.Limited, "hello_recognised": c.Recognised,
		"hello_refused": c.Refused, "hello_ignored": c.Ignored, "hello_doubts": c.Doubts,
	} {
		st.Counters[name] = n
	}
	if !all {
		return
	}
	st.Counters["wrong_port"] = link.WrongPort
	if o != (roce.OverlayCounters{}) {
		for i, n := range o.Dropped() {
			st.Counters["overlay_"+roce.OverlayReasons[i]] = n
		}
		st.Counters["overlay_questions"], st.Counters["overlay_news"] = o.Questions, o.News
	}
	for _, h := range list {
		p := protocol.PeerStatus{Address: h.GID.Addr().String(), Network: h.Network, Kind: h.Kind.String(), Version: h.Version}
		for _, f := range featureNames {
			if h.Features&f.bit != 0 {
				p.Features = append(p.Features, f.name)
			}
		}
		if h.Ports > 0 {
			p.Features = append(p.Features, "source-ports")
		}
		if h.TooLong != 0 {
			p.Problem = fmt.Sprintf("packets of %d bytes are too long for the way: see the MTU of the interfaces", h.TooLong)
		}
		st.Peers = append(st.Peers, p)
	}
	slices.SortFunc(st.Peers, func(a, b protocol.PeerStatus) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.Address, b.Address))
	})
}

// connections describes the connections of the programs in a view.
func (d *Service) connections(v *View) []protocol.ConnectionStatus {
	out := []protocol.ConnectionStatus{}
	programs := slices.DeleteFunc(d.cfg.Clients.Programs(), func(p Program) bool { return p.CM == nil || !v.program(&p) })
	type identifier struct {
		rdmacm.Status
		nic string
	}
	var ids []identifier
	d.looks.of(v.All).look(d.cfg.Loop, func() {
		for _, p := range programs {
			for _, s := range p.CM.Status() {
				ids = append(ids, identifier{s, p.NIC.Name})
			}
		}
	})
	text := func(a netip.AddrPort) string {
		if !a.IsValid() {
			return ""
		}
		return a.String()
	}
	for _, i := range ids {
		out = append(out, protocol.ConnectionStatus{
			NIC: i.nic, Pid: i.Pid, Program: i.Program, PortSpace: i.PortSpace, State: i.State, Local: text(i.Src), Remote: text(i.Dst),
			QPN: i.QPN, RemoteQPN: i.RemoteQPN, Groups: i.Groups,
		})
	}
	slices.SortFunc(out, func(a, b protocol.ConnectionStatus) int {
		return cmp.Or(cmp.Compare(a.Pid, b.Pid), cmp.Compare(a.State, b.State), cmp.Compare(a.Local, b.Local), cmp.Compare(a.Remote, b.Remote))
	})
	return out
}

// session describes one session. Each is a separate call on the loop, so that a long status does not stall it.
func (d *Service) session(ses *Session, t *throttle) protocol.SessionStatus {
	var in nic.SessionStatus
	loop := 0
	t.look(d.cfg.Loop, func() { in, loop = ses.Device.Status(), d.cfg.Loop.LoopOf(ses.Device) })
	out := protocol.SessionStatus{
		ID: ses.ID, NIC: ses.NIC.Name, Pid: ses.Of.Pid, UID: ses.Of.UID, Program: ses.Of.Program, Label: ses.Of.Label,
		Opened: ses.Opened, Commands: ses.Commands, Loop: loop, MRBytes: in.MRBytes, Memory: usage(in.Usage),
		Objects: protocol.ObjectCount{
			PDs: in.PDs, MRs: in.MRs, MWs: in.MWs, CQs: in.CQs, QPs: len(in.QPs), SRQs: in.SRQs, AHs: in.AHs,
			Channels: in.Chans,
		},
		QPs: []protocol.QPStatus{},
	}
	for _, r := range in.Regions {
		out.Regions = append(out.Regions, protocol.RegionStatus{Handle: r.Handle, Length: r.Length, MemoryUsage: usage(r.Usage)})
	}
	slices.SortFunc(out.Regions, func(a, b protocol.RegionStatus) int { return cmp.Compare(a.Handle, b.Handle) })
	for _, q := range in.QPs {
		a := &q.Snapshot.Attr
		qs := protocol.QPStatus{
			Num: q.Num, Type: q.Type.String(), State: abitext.Name(abitext.QPStates, uint64(q.Snapshot.State)),
			DestQPN: a.DestQPN, Outstanding: q.SendPosted, Aside: q.Aside,
		}
		if a.DGID != (ib.GID{}) {
			qs.DestGID = abitext.GID(a.DGID)
		}
		out.QPs = append(out.QPs, qs)
	}
	slices.SortFunc(out.QPs, func(a, b protocol.QPStatus) int { return cmp.Compare(a.Num, b.Num) })
	return out
}

// usage converts memory usage for tools.
func usage(u memory.Usage) protocol.MemoryUsage {
	return protocol.UsageOf(u.Own, u.Shared, u.Foreign, u.Why)
}
