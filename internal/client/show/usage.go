package show

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// SumRecords adds up the records of each NIC.
func SumRecords(in []protocol.UsageRecord) []protocol.UsageRecord {
	type key struct{ tenant, network, nic string }
	at := make(map[key]int)
	out := []protocol.UsageRecord{}
	for _, r := range in {
		k := key{r.Tenant, r.Network, r.NIC}
		i, ok := at[k]
		if !ok {
			at[k] = len(out)
			r.Used = maps.Clone(r.Used)
			out = append(out, r)
			continue
		}
		s := &out[i]
		for name, v := range r.Used {
			s.Used[name] += v
		}
		if r.From.Before(s.From) {
			s.From = r.From
		}
		if r.To.After(s.To) {
			s.To = r.To
		}
	}
	slices.SortFunc(out, func(a, b protocol.UsageRecord) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Network, b.Network), cmp.Compare(a.NIC, b.NIC))
	})
	return out
}

// A NICName identifies a NIC in a record.
type NICName struct{ Tenant, Network, NIC string }

// Usage prints a report as text, json or csv. containers names the container of each NIC now.
func Usage(w io.Writer, u *protocol.UsageReport, output string, containers map[NICName]string) error {
	switch output {
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(u)
	case "csv":
		return csvUsage(w, u)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// The column for containers exists only if there are some.
	in := func(text string) string {
		if len(containers) == 0 {
			return ""
		}
		return cmp.Or(text, "-") + "\t"
	}
	fmt.Fprintln(t, "TENANT\tNIC\t"+in("NOW IN")+"FROM\tTO\tOUT\tIN\tSENT\tRECEIVED\tDROPPED\tDENIED\tCPU\tMEMORY")
	for _, r := range u.Records {
		fmt.Fprintf(t, "%s\t%s\t%s%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%.3f s\t%s·s\n", r.Tenant, cmp.Or(r.NIC, "-"), in(Plain(containers[NICName{r.Tenant, r.Network, r.NIC}])), clockText(r.From), clockText(r.To),
			bytesText(bytesOut(r.Used)), bytesText(bytesIn(r.Used)),
			sumOf(r.Used, "sent_"), sumOf(r.Used, "received_"), sumOf(r.Used, "dropped_"), sumOf(r.Used, "denied_"),
			float64(timeOf(r.Used))/1e9, bytesText(r.Used["memory_byte_seconds"]))
	}
	return t.Flush()
}

// bytesOut and bytesIn return all bytes of a NIC: of messages and of Ethernet frames.
func bytesOut[N uint64 | float64](used map[string]N) N {
	return used["transmit_bytes"] + used["ethernet_transmit_bytes"]
}

func bytesIn[N uint64 | float64](used map[string]N) N {
	return used["receive_bytes"] + used["ethernet_receive_bytes"]
}

// timeOf returns the daemon's time for a NIC: of its loop, and for Ethernet frames.
func timeOf[N uint64 | float64](used map[string]N) N { return used["loop_ns"] + used["ethernet_ns"] }

func clockText(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }

// sumOf returns the sum of the columns with a common prefix.
func sumOf(used map[string]uint64, begins string) (n uint64) {
	for name, v := range used {
		if len(name) > len(begins) && name[:len(begins)] == begins {
			n += v
		}
	}
	return n
}

// csvUsage prints a row for each record with all columns.
func csvUsage(w io.Writer, u *protocol.UsageReport) error {
	out := csv.NewWriter(w)
	out.Write(append([]string{"tenant", "network", "nic", "from", "to"}, u.Columns...))
	for _, r := range u.Records {
		row := []string{r.Tenant, r.Network, r.NIC, r.From.UTC().Format(time.RFC3339), r.To.UTC().Format(time.RFC3339)}
		for _, c := range u.Columns {
			row = append(row, strconv.FormatUint(r.Used[c], 10))
		}
		out.Write(row)
	}
	out.Flush()
	return out.Error()
}
