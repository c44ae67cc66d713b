package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// An Impact is what the end of the daemon would do to one program, or to one interface.
type Impact struct {
	protocol.ProgramStatus
	// Interface: it is no program but an interface of a container, or the network card of a virtual machine.
	Interface   bool   `json:"interface,omitempty"`
	QueuePairs  int    `json:"queuePairs"`
	Connected   int    `json:"connected"` // queue pairs with a peer
	Outstanding uint64 `json:"outstanding"`
	Memory      uint64 `json:"registeredBytes"`
}

// ImpactOf lists the programs that the end of a daemon would hit, those with the most connections first, then interfaces.
func ImpactOf(s *protocol.Status) []Impact {
	type who struct {
		nic string
		pid int
	}
	at := make(map[who]int)
	out := make([]Impact, 0, len(s.Programs))
	for _, p := range s.Programs {
		at[who{p.NIC, p.Pid}] = len(out)
		out = append(out, Impact{ProgramStatus: p})
	}
	for _, ses := range s.Sessions {
		i, ok := at[who{ses.NIC, ses.Pid}]
		if !ok {
			continue
		}
		e := &out[i]
		e.QueuePairs += len(ses.QPs)
		e.Memory += ses.MRBytes
		for _, q := range ses.QPs {
			e.Outstanding += uint64(q.Outstanding)
			if q.DestQPN != 0 {
				e.Connected++
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Impact) int {
		return cmp.Or(cmp.Compare(b.Connected, a.Connected), cmp.Compare(a.NIC, b.NIC), cmp.Compare(a.Pid, b.Pid))
	})
	programs := len(out)
	for _, n := range s.NICs {
		if n.RoCE != "" { // it is attached
			out = append(out, Impact{ProgramStatus: protocol.ProgramStatus{NIC: n.Tenant + "/" + n.NIC, Container: n.Container}, Interface: true})
		}
	}
	slices.SortFunc(out[programs:], func(a, b Impact) int { return cmp.Compare(a.NIC, b.NIC) })
	return out
}

// PrintImpact prints the programs and interfaces that the end of the daemon would hit.
func PrintImpact(w io.Writer, list []Impact) {
	defer PrintInterfaces(w, list)
	programs := slices.DeleteFunc(slices.Clone(list), func(e Impact) bool { return e.Interface })
	if len(programs) == 0 {
		fmt.Fprintln(w, "no program would be hit")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NIC\tPROGRAM\tPID\tUID\tCONTAINER\tQPS\tCONNECTED\tOUTSTANDING\tMEMORY")
	for _, e := range programs {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%d\t%d\t%d\t%s\n", e.NIC, cmp.Or(Plain(e.Program), "?"), e.Pid, e.UID, cmp.Or(Plain(e.Container), "-"),
			e.QueuePairs, e.Connected, e.Outstanding, bytesText(e.Memory))
	}
	t.Flush()
	fmt.Fprintf(w, "%d programs get DEVICE_FATAL when the daemon ends\n", len(programs))
}

// PrintInterfaces prints the interfaces that lose their network when the daemon ends.
func PrintInterfaces(w io.Writer, list []Impact) {
	interfaces := slices.DeleteFunc(slices.Clone(list), func(e Impact) bool { return !e.Interface })
	if len(interfaces) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NIC\tINTERFACE OF")
	for _, e := range interfaces {
		fmt.Fprintf(t, "%s\t%s\n", e.NIC, cmp.Or(Plain(e.Container), "?"))
	}
	t.Flush()
	fmt.Fprintf(w, "%d interfaces have no network while no daemon runs\n", len(interfaces))
}
