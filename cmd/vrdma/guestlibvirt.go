package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/vm"
	"vrdma.dev/vrdma/internal/client/vm/vmagent"
)

func guestLibvirtCommand(o *options) *cobra.Command {
	var q qemu
	c := &cobra.Command{
		Use:   "libvirt NIC",
		Short: "print parts of a libvirt domain for a NIC",
		Long: `Prints parts of a domain's XML for the NIC, each with its place in the document: memory that
is shared with the daemon, the network card, and, if the daemon was started with --guest NIC,
the ports for vrdma guest agent.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			e, err := o.guestEnd(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.OutOrStdout(), q.xml(e))
			return err
		},
	}
	c.Flags().IntVar(&q.queues, "queues", 1, "queue pairs of the network card, at most 8; use the domain's number of processors")
	c.Flags().BoolVar(&q.tcg, "tcg", false, "the domain is emulated (type qemu); without it QEMU 7.2 crashes there")
	return c
}

// xml returns what args returns, for libvirt.
func (q *qemu) xml(e guestEnd) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	source := func(mode, path string) string {
		return fmt.Sprintf("<source %s path='%s'><reconnect enabled='yes' timeout='1'/></source>", mode, xmlText.Replace(path))
	}
	line("<!-- into <domain> -->")
	if q.tcg {
		line("<vcpu current='%d'>%d</vcpu>", q.queues, max(q.queues, 2)) // as in args
	}
	line("<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>")
	line("<!-- into <devices> -->")
	line("<interface type='vhostuser'>")
	if e.nic.MAC != "" {
		line("  <mac address='%s'/>", e.nic.MAC)
	}
	line("  " + source("type='unix' mode='client'", e.card))
	line("  <model type='virtio'/>")
	if q.queues > 1 && e.nic.MAC != "" {
		line("  <driver queues='%d'/>", q.queues)
	}
	line("  <alias name='ua-vrdma'/>")
	line("</interface>")
	if e.dir != "" {
		for _, p := range []struct{ socket, name string }{{vm.LineSocket, vmagent.LinePort}, {vm.BellSocket, vmagent.BellPort}} {
			line("<channel type='unix'>%s<target type='virtio' name='%s'/></channel>", source("mode='connect'", filepath.Join(e.dir, p.socket)), p.name)
		}
	}
	// libvirt has no element for the rest: <mtu> applies only to interfaces of the host.
	property := func(name string, value int) string {
		return fmt.Sprintf("<qemu:property name='%s' type='unsigned' value='%d'/>", name, value)
	}
	more := ""
	if e.nic.MTU != 0 {
		more += property("host_mtu", e.nic.MTU)
	}
	if q.tcg {
		more += property("vectors", 0)
	}
	if more != "" {
		line("<!-- into <domain>, whose first line has xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0' -->")
		line("<qemu:override><qemu:device alias='ua-vrdma'><qemu:frontend>%s</qemu:frontend></qemu:device></qemu:override>", more)
	}
	return b.String()
}

var xmlText = strings.NewReplacer("&", "&amp;", "<", "&lt;", "'", "&apos;")
