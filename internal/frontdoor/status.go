package frontdoor

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"vrdma/internal/abitext"
	"vrdma/internal/channel"
	"vrdma/internal/hosts"
	"vrdma/internal/ib"
	"vrdma/internal/nic"
	"vrdma/internal/rdmacm"
	"vrdma/internal/wire"
)

// visible are the sessions that a tool may see, oldest first.
func (s *Server) visible(who *peer, all bool) []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sessions []*session
	for ses := range s.sessions {
		if all || ses.proc.sameUser(who) {
			sessions = append(sessions, ses)
		}
	}
	slices.SortFunc(sessions, func(a, b *session) int { return cmp.Compare(a.id, b.id) })
	return sessions
}

// status describes the daemon and these sessions to a tool.
func (s *Server) status(who *peer, all bool, sessions []*session) channel.Status {
	n := s.cfg.NIC
	st := channel.Status{
		Version: s.cfg.Version, Protocol: channel.Version, Pid: os.Getpid(), Socket: s.cfg.Socket, Started: s.started,
		Device: channel.DeviceStatus{
			Name: n.Name, NodeGUID: abitext.SysfsGUID(n.NodeGUID), State: "ACTIVE", LinkLayer: "Ethernet", MTU: 128 << n.MTU,
		},
		Sessions: []channel.SessionStatus{},
		Counters: map[string]uint64{},
		Refused:  s.refused.snapshot(),
	}
	for i, g := range n.GIDs {
		st.Device.GIDs = append(st.Device.GIDs, channel.GIDStatus{
			Index: i, GID: abitext.GID(g.GID), Type: nic.GIDType, NetDev: g.NetDev,
		})
	}
	for _, c := range s.countersThrough(s.looks.of(all)) {
		st.Counters[c.Name] = c.Value
	}
	s.peers(&st, all)

	s.recount()
	lines := who.accountLines()
	if all {
		lines = s.cfg.Budget.Lines()
		if s.control != nil {
			st.Control = s.control.path
		}
	}
	for _, l := range lines {
		st.Budgets = append(st.Budgets, channel.BudgetStatus{Whose: l.Whose, Kind: l.Kind.String(), Used: l.Used, Limit: l.Limit})
	}
	for _, ses := range sessions {
		st.Sessions = append(st.Sessions, ses.status(s.looks.of(all)))
	}
	st.Connections = s.connections(who, all)
	return st
}

// featureNames are what vrdma hosts may use between them.
var featureNames = []struct {
	bit  uint32
	name string
}{{wire.FeatureRepair, "selective-repeat"}, {wire.FeaturePacedReads, "paced-reads"}, {wire.FeatureShortIDs, "short-ids"}, {wire.FeatureFiller, "filler"}}

// peers describes other hosts, to those who may see all, and counts what hosts told each
// other.
func (s *Server) peers(st *channel.Status, all bool) {
	var list []hosts.Status
	var c hosts.Counters
	s.looks.of(all).visit(s, func() { list, c = s.cfg.Engine.Peers() })
	for name, n := range map[string]uint64{
		"hello_asked": c.Asked, "hello_answered": c.Answered, "hello_limited": c.Limited, "hello_recognised": c.Recognised,
		"hello_refused": c.Refused, "hello_ignored": c.Ignored, "hello_doubts": c.Doubts,
	} {
		st.Counters[name] = n
	}
	if !all {
		return
	}
	for _, h := range list {
		p := channel.PeerStatus{Address: h.GID.Addr().String(), Kind: h.Kind.String(), Version: h.Version}
		for _, f := range featureNames {
			if h.Features&f.bit != 0 {
				p.Features = append(p.Features, f.name)
			}
		}
		if h.TooLong != 0 {
			p.Problem = fmt.Sprintf("packets of %d bytes are too long for the way: see the MTU of the interfaces", h.TooLong)
		}
		st.Peers = append(st.Peers, p)
	}
	slices.SortFunc(st.Peers, func(a, b channel.PeerStatus) int { return cmp.Compare(a.Address, b.Address) })
}

// connections describes the connections of the programs that a tool may see.
func (s *Server) connections(who *peer, all bool) []channel.ConnectionStatus {
	out := []channel.ConnectionStatus{}
	if s.cfg.CMA == nil {
		return out
	}
	s.mu.Lock()
	var clients []*rdmacm.Client
	for _, p := range s.processes {
		if all || p.sameUser(who) {
			clients = append(clients, p.cm)
		}
	}
	s.mu.Unlock()
	var ids []rdmacm.Status
	s.looks.of(all).visit(s, func() {
		for _, c := range clients {
			ids = append(ids, c.Status()...)
		}
	})
	text := func(a netip.AddrPort) string {
		if !a.IsValid() {
			return ""
		}
		return a.String()
	}
	for _, i := range ids {
		out = append(out, channel.ConnectionStatus{
			Pid: i.Pid, Program: i.Program, PortSpace: i.PortSpace, State: i.State, Local: text(i.Src), Remote: text(i.Dst),
			QPN: i.QPN, RemoteQPN: i.RemoteQPN, Groups: i.Groups,
		})
	}
	slices.SortFunc(out, func(a, b channel.ConnectionStatus) int {
		return cmp.Or(cmp.Compare(a.Pid, b.Pid), cmp.Compare(a.State, b.State), cmp.Compare(a.Local, b.Local), cmp.Compare(a.Remote, b.Remote))
	})
	return out
}

// status describes one session. Each is a visit of its own, so that a status of
// many does not stall the loop.
func (ses *session) status(look *throttle) channel.SessionStatus {
	var in nic.SessionStatus
	look.visit(ses.srv, func() { in = ses.dev.Status() })
	out := channel.SessionStatus{
		ID: ses.id, Pid: ses.proc.pid, UID: ses.proc.uid, Program: ses.proc.program, Label: ses.proc.label,
		Opened: ses.opened, Commands: ses.commands.Load(), MRBytes: in.MRBytes,
		Objects: channel.ObjectCount{
			PDs: in.PDs, MRs: in.MRs, MWs: in.MWs, CQs: in.CQs, QPs: len(in.QPs), SRQs: in.SRQs, AHs: in.AHs,
			Channels: in.Chans,
		},
		QPs: []channel.QPStatus{},
	}
	for _, q := range in.QPs {
		a := &q.Snapshot.Attr
		qs := channel.QPStatus{
			Num: q.Num, Type: q.Type.String(), State: abitext.Name(abitext.QPStates, uint64(q.Snapshot.State)),
			DestQPN: a.DestQPN, Outstanding: q.SendPosted,
		}
		if a.DGID != (ib.GID{}) {
			qs.DestGID = abitext.GID(a.DGID)
		}
		out.QPs = append(out.QPs, qs)
	}
	slices.SortFunc(out.QPs, func(a, b channel.QPStatus) int { return cmp.Compare(a.Num, b.Num) })
	return out
}
