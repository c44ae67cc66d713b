package show

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// Status prints the status for people.
func Status(w io.Writer, s *protocol.Status, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "daemon\tvrdma %s, pid %d, up %s, %s\n", s.Version, s.Pid, age(now, s.Started), s.Socket)
	if s.NIC == "" {
		fmt.Fprintf(t, "device\tnone here: a declared NIC has its own, see vrdma run --nic\n")
	} else {
		fmt.Fprintf(t, "device\t%s, port 1 %s, %s, MTU %d, node GUID %s\n", s.Device.Name, s.Device.State, s.Device.LinkLayer, s.Device.MTU, s.Device.NodeGUID)
	}
	if s.NIC != "" && s.NIC != "default" {
		fmt.Fprintf(t, "NIC\t%s in network %s\n", s.NIC, s.Network)
	}
	for _, g := range s.Device.GIDs {
		fmt.Fprintf(t, "  GID %d\t%s  %s  %s\n", g.Index, g.GID, g.Type, Plain(g.NetDev)) // a container may have chosen the name
	}
	if s.Draining {
		fmt.Fprintf(t, "draining\tnew programs are refused; vrdma drain --off admits them again\n")
	}
	if s.Store != nil {
		fmt.Fprintf(t, "store\t%s\n", storeText(s.Store, now))
	}
	if s.Audit != "" {
		fmt.Fprintf(t, "audit log\t%s\n", Plain(s.Audit))
	}
	if s.Usage != "" {
		fmt.Fprintf(t, "usage\t%s\n", Plain(s.Usage))
	}
	if len(s.Sessions) == 0 {
		fmt.Fprintf(t, "sessions\tnone\n")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	printNICs(w, s.NICs)
	for i := range s.Sessions {
		printSession(w, &s.Sessions[i], now)
	}
	printList(w, "connections", s.Connections, printConnection)
	printList(w, "peer hosts", s.Peers, printPeer)
	printList(w, "users near a limit", nearLimit(s.Budgets), printBudget)
	printCounts(w, "counters", s.Counters)
	printCounts(w, "refused as unsupported", s.Refused)
	return nil
}

// printNICs prints a table of virtual NICs.
func printNICs(w io.Writer, list []protocol.NICStatus) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(w, "\nNICs\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// Columns for containers and virtual machines exist only if there are some.
	named := slices.ContainsFunc(list, func(n protocol.NICStatus) bool { return n.Container != "" || n.RoCE != "" })
	in := func(who, roce string) string {
		if !named {
			return ""
		}
		return "\t" + cmp.Or(who, "-") + "\t" + cmp.Or(roce, "-")
	}
	fmt.Fprintln(t, "  TENANT\tNIC\tNETWORK\tADDRESSES\tDEVICES\tQPS\tCONN\tMEMORY\tOUT\tIN\tDROPPED\tDENIED"+in("NOW IN", "UDP 4791"))
	const most = 50
	for _, n := range list[:min(most, len(list))] {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%d\t%d%s\n", n.Tenant, n.NIC, n.Network, cmp.Or(strings.Join(n.Addresses, ","), "-"),
			n.Sessions, n.QPs, n.Connections, bytesText(n.Registered), bytesText(bytesOut(n.Used)), bytesText(bytesIn(n.Used)),
			sumOf(n.Used, "dropped_"), sumOf(n.Used, "denied_"), in(Plain(n.Container), n.RoCE))
	}
	t.Flush()
	if len(list) > most {
		fmt.Fprintf(w, "  ... and %d more (-o json lists all, vrdma top shows rates)\n", len(list)-most)
	}
}

func printSession(w io.Writer, s *protocol.SessionStatus, now time.Time) {
	o := s.Objects
	fmt.Fprintf(w, "\nsession %d: %s, pid %d, uid %d, open for %s%s\n", s.ID, cmp.Or(s.Program, "?"), s.Pid, s.UID, age(now, s.Opened), ofNIC(s.NIC))
	fmt.Fprintf(w, "  %d commands; PD %d, MR %d (%s), MW %d, CQ %d, QP %d, SRQ %d, AH %d, channels %d\n",
		s.Commands, o.PDs, o.MRs, bytesText(s.MRBytes), o.MWs, o.CQs, o.QPs, o.SRQs, o.AHs, o.Channels)
	if m := s.Memory; m.Shared > 0 || m.Foreign > 0 {
		fmt.Fprintf(w, "  memory: own %s, shared %s, foreign %s", bytesText(m.Own), bytesText(m.Shared), bytesText(m.Foreign))
		if len(m.Why) > 0 {
			fmt.Fprintf(w, " (%s)", strings.Join(m.Why, "; "))
		}
		fmt.Fprintln(w)
	}
	const most = 20
	for i, q := range s.QPs {
		if i == most {
			fmt.Fprintf(w, "  ... and %d more QPs (-o json lists all)\n", len(s.QPs)-most)
			break
		}
		fmt.Fprintf(w, "  QP 0x%06x %s %s", q.Num, q.Type, q.State)
		if q.DestQPN != 0 {
			fmt.Fprintf(w, " -> 0x%06x at %s", q.DestQPN, q.DestGID)
		}
		fmt.Fprintf(w, ", %d outstanding\n", q.Outstanding)
	}
}

// ofNIC names a NIC that is not the default.
func ofNIC(name string) string {
	if name == "" || name == "default" {
		return ""
	}
	return ", NIC " + name
}

// printConnection prints one connection.
func printConnection(w io.Writer, c protocol.ConnectionStatus) {
	fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s, pid %d%s", c.PortSpace, cmp.Or(c.Local, "-"), cmp.Or(c.Remote, "-"), c.State, cmp.Or(c.Program, "?"), c.Pid, ofNIC(c.NIC))
	if c.QPN != 0 {
		fmt.Fprintf(w, ", QP 0x%06x", c.QPN)
	}
	if c.RemoteQPN != 0 {
		fmt.Fprintf(w, " -> 0x%06x", c.RemoteQPN)
	}
	if c.Groups != 0 {
		fmt.Fprintf(w, ", %d multicast groups", c.Groups)
	}
	fmt.Fprintln(w)
}

// nearLimit returns the accounts that hold half of their limit or more.
func nearLimit(all []protocol.BudgetStatus) (out []protocol.BudgetStatus) {
	for _, b := range all {
		if b.Used >= b.Limit/2 {
			out = append(out, b)
		}
	}
	return out
}

// printBudget prints one account.
func printBudget(w io.Writer, b protocol.BudgetStatus) {
	fmt.Fprintf(w, "  %s\t%s\t%d of %d\n", b.Whose, b.Kind, b.Used, b.Limit)
}

// printPeer prints one other host.
func printPeer(w io.Writer, p protocol.PeerStatus) {
	at := p.Address
	if p.Network != "" {
		at += " in " + p.Network
	}
	fmt.Fprintf(w, "  %s\t%s\t%s\n", at, strings.TrimSpace(p.Kind+" "+p.Version), strings.Join(p.Features, ", "))
	if p.Problem != "" {
		fmt.Fprintf(w, "    %s\n", p.Problem)
	}
}

// printList prints a table with at most 50 lines.
func printList[T any](w io.Writer, title string, list []T, line func(io.Writer, T)) {
	if len(list) == 0 {
		return
	}
	const most = 50
	fmt.Fprintf(w, "\n%s\n", title)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, entry := range list[:min(most, len(list))] {
		line(t, entry)
	}
	t.Flush()
	if len(list) > most {
		fmt.Fprintf(w, "  ... and %d more (-o json lists all)\n", len(list)-most)
	}
}

// printCounts prints counters that are not zero, by name.
func printCounts(w io.Writer, title string, counts map[string]uint64) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	printed := false
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if counts[name] == 0 {
			continue
		}
		if !printed {
			fmt.Fprintf(w, "\n%s\n", title)
			printed = true
		}
		note := ""
		if name == "port_xmit_data" || name == "port_rcv_data" { // the kernel's unit
			note = "  words of 4 bytes: " + bytesText(4*counts[name])
		}
		fmt.Fprintf(t, "  %s\t%d\t%s\n", name, counts[name], note)
	}
	t.Flush()
}
