package main

import (
	"slices"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/show"
)

func usageCommand(o *options) *cobra.Command {
	var output, tenant string
	var since time.Duration
	var records bool
	c := &cobra.Command{
		Use:   "usage",
		Short: "show the usage of tenants, for bills",
		Long: `Shows what each NIC has sent and received: bytes, messages, the daemon's processor time,
registered memory. The daemon keeps records per minute for two hours, per hour for two days,
then per day and tenant. A file keeps them over restarts (vrdma daemon --usage FILE). A record that begins
before --since and ends after it counts completely; FROM and TO show the interval. The
daemon's owner sees all tenants, administrators their tenant, other users the NIC of their
socket. OUT and IN count messages, and Ethernet frames of virtual machines and containers. NOW
IN is the container, pod or machine that has the NIC now.

-o json and -o csv have every column: messages by operation in each direction (a READ counts
as sent at the reader), packets dropped and requests denied by reason.`,
		Example: `  vrdma usage --since 24h
  vrdma usage --since 720h --tenant red --records -o csv`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"text", "json", "csv"}, output) {
				return usage("-o %s: choose text, json or csv", output)
			}
			if since <= 0 {
				return usage("--since %v: want how long ago, such as 24h", since)
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			report, err := protocol.QueryUsage(place.Socket, time.Now().Add(-since), tenant)
			if err != nil {
				return unanswered(place, err)
			}
			if !records {
				report.Records = show.SumRecords(report.Records)
			}
			return show.Usage(c.OutOrStdout(), report, output, containersNow(place.Socket))
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text, json or csv")
	c.Flags().DurationVar(&since, "since", 24*time.Hour, "start of the interval, before now")
	c.Flags().StringVar(&tenant, "tenant", "", "only this tenant")
	c.Flags().BoolVar(&records, "records", false, "print each record instead of sums per NIC")
	return c
}

// containersNow returns the container of each NIC now; empty if the daemon does not answer.
func containersNow(socket string) map[show.NICName]string {
	out := make(map[show.NICName]string)
	top, err := protocol.QueryTop(socket)
	if err != nil {
		return out
	}
	for _, n := range top.NICs {
		if n.Container != "" {
			out[show.NICName{Tenant: n.Tenant, Network: n.Network, NIC: n.NIC}] = n.Container
		}
	}
	return out
}
