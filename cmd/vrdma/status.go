package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/show"
)

func statusCommand(o *options) *cobra.Command {
	var output string
	var impact bool
	c := &cobra.Command{
		Use:   "status",
		Short: "show the device, its programs, connections and peer hosts, and its counters",
		Long: `Shows, for the daemon at the socket:

  - the device and its GIDs;
  - the files of the store, the audit log and the usage records, for the daemon's user and root;
  - virtual NICs other than the default, with what each has sent, received and dropped (vrdma
    top shows rates), its container or virtual machine, and the owner of UDP port 4791 (RoCE)
    of a network card: the card, until a program opens the NIC, then the daemon;
  - programs that use the device, with their queue pairs;
  - connections of rdma_cm (librdmacm programs, and TCP programs under run --sockets): port
    space, both addresses, state, program;
  - other hosts, and whether they are vrdma hosts;
  - users that hold half or more of a limit;
  - counters that are not zero, and commands refused as unsupported.

Long lists are cut, except with -o json, which also shows the resources of every user.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usage("-o %s: choose text or json", output)
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			status, err := queryStatus(place.Socket)
			switch {
			case absent(err):
				return lacks("no daemon serves %s: vrdma run starts one for as long as it is needed, vrdma daemon starts one that stays", place.Socket)
			case err != nil:
				return improper(place, err)
			}
			if impact {
				return showImpact(c.OutOrStdout(), status, output == "json")
			}
			if output == "json" {
				encoder := json.NewEncoder(c.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(status)
			}
			return show.Status(c.OutOrStdout(), status, time.Now())
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	c.Flags().BoolVar(&impact, "impact", false, "list the programs and interfaces that a stop of the daemon would hit")
	return c
}

// queryStatus asks the daemon at socket. Administrators of tenants also see their tenants' NICs.
func queryStatus(socket string) (*protocol.Status, error) {
	status, err := protocol.QueryStatus(socket)
	if err == nil && status.Control != "" || err != nil && !errors.Is(err, fs.ErrPermission) {
		return status, err
	}
	own := protocol.QueryTenants(socket)
	switch {
	case own == nil || len(own.NICs) == 0:
		return status, err
	case err != nil:
		return own, nil
	}
	status.NICs = own.NICs
	return status, nil
}
