package main

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"vrdma/internal/vm"
	"vrdma/internal/vmagent"
)

func guestCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "guest",
		Short: "give a virtual machine a NIC",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usage("say what: vrdma guest args NIC on the host, or vrdma guest agent in the machine")
		},
	}
	c.AddCommand(guestArgsCommand(o), guestAgentCommand(o))
	return c
}

func guestArgsCommand(o *options) *cobra.Command {
	var memory, id string
	var tcg bool
	c := &cobra.Command{
		Use:   "args NIC",
		Short: "print what QEMU needs for a NIC",
		Long: `Prints arguments for QEMU that give a virtual machine the NIC: default, or a declared one,
TENANT/NAME. The daemon has to serve it to machines: vrdma daemon --guest NIC. The machine's
memory is shared with the daemon, so -m and -M memory-backend are among the arguments.
In the machine vrdma guest agent, as root, gives programs the device.`,
		Example: "  qemu-system-x86_64 $(vrdma guest args default) -accel kvm -cpu host disk.img",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), strings.Join(guestArgs(guestDir(place, args[0]), id, memory, tcg), " "))
			return err
		},
	}
	c.Flags().StringVarP(&memory, "memory", "m", "1G", "how much memory the machine has")
	c.Flags().StringVar(&id, "id", "vrdma", "what the names of QEMU's objects begin with")
	c.Flags().BoolVar(&tcg, "tcg", false, "the machine is emulated: without it QEMU 7.2 ends itself there")
	return c
}

// guestArgs are the arguments of QEMU for the sockets in a directory.
func guestArgs(dir, id, memory string, tcg bool) []string {
	chardev := func(name string) string {
		return fmt.Sprintf("socket,id=%s-%s,path=%s,reconnect=1", id, name, filepath.Join(dir, name))
	}
	port := func(nr int, socket, name string) string {
		return fmt.Sprintf("virtserialport,bus=%s-serial.0,nr=%d,chardev=%s-%s,name=%s", id, nr, id, socket, name)
	}
	card := fmt.Sprintf("virtio-net-pci,netdev=%s-card,romfile=", id)
	if tcg {
		card += ",vectors=0"
	}
	return []string{
		"-m", memory, "-object", fmt.Sprintf("memory-backend-memfd,id=%s-ram,size=%s,share=on", id, memory), "-machine", fmt.Sprintf("memory-backend=%s-ram", id),
		"-chardev", chardev(vm.CardSocket), "-netdev", fmt.Sprintf("vhost-user,id=%s-card,chardev=%s-%s", id, id, vm.CardSocket), "-device", card,
		"-device", fmt.Sprintf("virtio-serial-pci,id=%s-serial", id),
		"-chardev", chardev(vm.LineSocket), "-device", port(1, vm.LineSocket, vmagent.LinePort),
		"-chardev", chardev(vm.BellSocket), "-device", port(2, vm.BellSocket, vmagent.BellPort),
	}
}

func guestAgentCommand(o *options) *cobra.Command {
	var name, mode string
	var share int
	c := &cobra.Command{
		Use:   "agent",
		Short: "give programs in this virtual machine the device, in the foreground",
		Long: `Runs in a virtual machine, as root, and serves its programs the device of the NIC that the
machine was given (vrdma guest args): with a socket and what belongs to it, as a daemon does,
so vrdma run works. Memory that programs register is pinned, up to --pin percent of
the machine's, whatever their own limit of locked memory is.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			var m fs.FileMode
			if _, err := fmt.Sscanf(mode, "%o", &m); err != nil || m > 0o777 {
				return usage("--mode %s: want octal permissions such as 0666", mode)
			}
			if share < 1 || share > 95 {
				return usage("--pin %d: want a percentage, 1 to 95", share)
			}
			if name == "" {
				name, _ = os.Hostname()
			}
			if err := os.MkdirAll(filepath.Dir(place.Socket), 0o755); err != nil {
				return lacks("the socket's directory: %w", err)
			}
			claim, err := place.Claim(false)
			if err != nil {
				return lacks("%w", err)
			}
			defer claim.Release()
			if err := installLibraries(place, directoryMode(m)); err != nil {
				return err
			}
			var s unix.Sysinfo_t
			if err := unix.Sysinfo(&s); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			err = vmagent.Run(ctx, vmagent.Config{
				Socket: place.Socket, Mode: m, Tree: place.Sysfs(), Name: name, Most: s.Totalram * uint64(s.Unit) / 100 * uint64(share),
				Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			})
			if err != nil {
				return lacks("%w", err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&name, "name", "", "the machine's name, for vrdma status on the host (default: its host name)")
	c.Flags().StringVar(&mode, "mode", "0666", "the socket's permissions; 0600 lets only root in")
	c.Flags().IntVar(&share, "pin", 50, "how much of the machine's memory programs may register together, in percent")
	return c
}
