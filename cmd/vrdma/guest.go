package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"vrdma/internal/launch"
	"vrdma/internal/protocol"
)

func guestCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "guest",
		Short: "give a NIC to a virtual machine",
		Long: `A virtual machine has a declared NIC as its network card: QEMU speaks vhost-user with the
daemon. The commands print what QEMU or libvirt has to be told. The machine may be started
before the daemon or after it, and either may be restarted.`,
	}
	c.AddCommand(guestArgsCommand(o), guestLibvirtCommand(o))
	return c
}

// guestCard asks the daemon for a NIC's end of a virtual machine.
func (o *options) guestCard(name string) (*protocol.GuestCard, error) {
	place, err := o.place()
	if err != nil {
		return nil, err
	}
	var at launch.Place
	if at, err = findNIC(place, name); err != nil {
		return nil, err
	}
	card, err := protocol.QueryGuest(at.Socket)
	if err != nil {
		return nil, lacks("NIC %s is not for virtual machines: %w", name, err)
	}
	return card, nil
}

func guestArgsCommand(o *options) *cobra.Command {
	var tcg bool
	var queues, memory int
	c := &cobra.Command{
		Use:   "args TENANT/NAME",
		Short: "print QEMU's arguments for a virtual machine with a NIC",
		Long: `Prints arguments for qemu-system-…, one a line: memory that the daemon shares, and the card.
Put them behind your own, which must not have -m or a memory-backend of their own:

  qemu-system-x86_64 -M q35 … $(vrdma guest args red/web)

With -M, add memory-backend=ram to it: -M q35,memory-backend=ram.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			card, err := o.guestCard(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), strings.Join(guestArgs(card, memory, queues, tcg), "\n"))
			return nil
		},
	}
	c.Flags().BoolVar(&tcg, "tcg", false, "for emulation without KVM, where QEMU's vhost-user cannot use MSI-X")
	c.Flags().IntVar(&queues, "queues", 1, "pairs of queues, at most 8: as many as processors")
	c.Flags().IntVarP(&memory, "memory", "m", 1024, "the machine's memory, in MiB")
	return c
}

// guestArgs are QEMU's arguments, an option and its value after another.
func guestArgs(card *protocol.GuestCard, memory, queues int, tcg bool) []string {
	device := fmt.Sprintf("virtio-net-pci,netdev=vrdma-net,mac=%s,host_mtu=%d", card.MAC, card.MTU)
	netdev := "vhost-user,id=vrdma-net,chardev=vrdma-card"
	if queues > 1 {
		netdev += fmt.Sprintf(",queues=%d", queues)
		device += ",mq=on"
		if !tcg {
			device += fmt.Sprintf(",vectors=%d", 2*queues+2)
		}
	}
	if tcg {
		device += ",vectors=0"
	}
	return []string{
		"-m", fmt.Sprint(memory),
		"-object", fmt.Sprintf("memory-backend-memfd,id=ram,size=%dM,share=on", memory),
		"-chardev", "socket,id=vrdma-card,path=" + strings.ReplaceAll(card.Socket, ",", ",,") + ",reconnect=1",
		"-netdev", netdev,
		"-device", device,
	}
}

func guestLibvirtCommand(o *options) *cobra.Command {
	var tcg bool
	var queues int
	c := &cobra.Command{
		Use:   "libvirt TENANT/NAME",
		Short: "print a domain's XML for a NIC",
		Long: `Prints what belongs into a domain of libvirt: memory that the daemon shares goes into <domain>,
the interface into <devices>.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			card, err := o.guestCard(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.OutOrStdout(), guestXML(card, queues, tcg))
			return err
		},
	}
	c.Flags().BoolVar(&tcg, "tcg", false, "for domains of type qemu, where QEMU's vhost-user cannot use MSI-X")
	c.Flags().IntVar(&queues, "queues", 1, "pairs of queues, at most 8: as many as processors")
	return c
}

// guestXML is libvirt's form of guestArgs.
func guestXML(card *protocol.GuestCard, queues int, tcg bool) string {
	var b strings.Builder
	b.WriteString("<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>\n")
	fmt.Fprintf(&b, "<interface type='vhostuser'>\n  <mac address='%s'/>\n", card.MAC)
	fmt.Fprintf(&b, "  <source type='unix' path='%s' mode='client'><reconnect enabled='yes' timeout='1'/></source>\n", card.Socket)
	b.WriteString("  <model type='virtio'/>\n")
	if queues > 1 {
		fmt.Fprintf(&b, "  <driver queues='%d'/>\n", queues)
	}
	fmt.Fprintf(&b, "  <mtu size='%d'/>\n", card.MTU)
	if tcg {
		b.WriteString("  <alias name='ua-vrdma'/>\n")
	}
	b.WriteString("</interface>\n")
	if tcg {
		b.WriteString("<!-- into <domain>, which needs xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0': -->\n" +
			"<qemu:override><qemu:device alias='ua-vrdma'><qemu:frontend><qemu:property name='vectors' type='unsigned' value='0'/></qemu:frontend></qemu:device></qemu:override>\n")
	}
	return b.String()
}
