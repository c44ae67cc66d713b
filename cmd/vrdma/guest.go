package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/vm"
	"vrdma.dev/vrdma/internal/client/vm/vmagent"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/launch"
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
	c.AddCommand(guestArgsCommand(o), guestLibvirtCommand(o), guestDiskCommand(), guestAgentCommand(o))
	return c
}

func guestArgsCommand(o *options) *cobra.Command {
	var q qemu
	c := &cobra.Command{
		Use:   "args NIC",
		Short: "print QEMU's arguments for a NIC",
		Long: `Prints QEMU's arguments for a virtual machine with the NIC: default, or a declared NIC,
TENANT/NAME. The daemon shares the guest's memory, so -m and -M memory-backend are among
the arguments. A NIC in a network with way vxlan is an ordinary network card in the machine,
which gets its address by DHCP.

If the daemon was started with --guest NIC, programs in the machine can also use the NIC as
an RDMA device: run vrdma guest agent as root in the machine.`,
		Example: "  qemu-system-x86_64 $(vrdma guest args red/web) -accel kvm -cpu host disk.img",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			e, err := o.guestEnd(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), strings.Join(q.args(e), " "))
			return err
		},
	}
	c.Flags().StringVarP(&q.memory, "memory", "m", "1G", "the guest's memory")
	c.Flags().StringVar(&q.id, "id", "vrdma", "prefix of the names of QEMU's objects")
	c.Flags().IntVar(&q.queues, "queues", 1, "queue pairs of the network card, at most 8; use the machine's number of processors")
	c.Flags().BoolVar(&q.tcg, "tcg", false, "the machine is emulated. Without it QEMU 7.2 crashes there, and doorbells of a single processor are lost")
	return c
}

// A guestEnd is the daemon's end of a virtual machine: its sockets and the NIC's card.
type guestEnd struct {
	card string             // socket of vhost-user
	dir  string             // directory of the agent's sockets; "": none
	nic  protocol.GuestCard // with a MAC if the card is in the switch
}

// guestEnd asks the daemon for the sockets of a NIC.
func (o *options) guestEnd(name string) (e guestEnd, err error) {
	place, err := o.place()
	if err != nil {
		return e, err
	}
	dir := place.Machine(name)
	if _, err := os.Lstat(filepath.Join(dir, vm.LineSocket)); err == nil {
		e.dir, e.card = dir, filepath.Join(dir, vm.CardSocket)
	}
	if name == registry.Default {
		if e.dir == "" {
			return e, lacks("the default NIC is not for virtual machines: start the daemon with --guest default")
		}
		return e, nil
	}
	at, err := locateNIC(place, name) // a virtual machine may be about to migrate to this host
	if err != nil {
		return e, err
	}
	n, err := protocol.QueryGuest(at.Socket)
	switch {
	case err == nil:
		if e.nic = *n; e.dir == "" {
			e.card = n.Socket
		}
	case e.dir == "":
		return e, lacks("NIC %s is not for virtual machines: %w", name, err)
	}
	return e, nil
}

// qemu holds the options of a virtual machine.
type qemu struct {
	memory, id string
	queues     int
	tcg        bool
}

// args returns QEMU's arguments.
func (q *qemu) args(e guestEnd) []string {
	id := q.id
	chardev := func(name, path string) string {
		return fmt.Sprintf("socket,id=%s-%s,path=%s,reconnect=1", id, name, strings.ReplaceAll(path, ",", ",,"))
	}
	port := func(nr int, socket, name string) string {
		return fmt.Sprintf("virtserialport,bus=%s-serial.0,nr=%d,chardev=%s-%s,name=%s", id, nr, id, socket, name)
	}
	netdev := fmt.Sprintf("vhost-user,id=%s-card,chardev=%s-%s", id, id, vm.CardSocket)
	card := fmt.Sprintf("virtio-net-pci,netdev=%s-card,romfile=", id)
	if e.nic.MAC != "" {
		card += fmt.Sprintf(",mac=%s,host_mtu=%d", e.nic.MAC, e.nic.MTU)
		if q.queues > 1 {
			netdev += fmt.Sprintf(",queues=%d", q.queues)
			card += ",mq=on"
		}
	}
	if q.tcg {
		card += ",vectors=0"
	}
	args := []string{
		"-m", q.memory, "-object", fmt.Sprintf("memory-backend-memfd,id=%s-ram,size=%s,share=on", id, q.memory), "-machine", fmt.Sprintf("memory-backend=%s-ram", id),
		"-chardev", chardev(vm.CardSocket, e.card), "-netdev", netdev, "-device", card,
	}
	if q.tcg {
		// An emulator of one processor omits barriers and splits atomic operations, but the daemon reads the
		// same memory. With a possible second processor it keeps both.
		args = append(args, "-smp", fmt.Sprintf("%d,maxcpus=%d", q.queues, max(q.queues, 2)))
	}
	if e.dir == "" {
		return args
	}
	return append(args,
		"-device", fmt.Sprintf("virtio-serial-pci,id=%s-serial", id),
		"-chardev", chardev(vm.LineSocket, filepath.Join(e.dir, vm.LineSocket)), "-device", port(2, vm.LineSocket, vmagent.LinePort),
		"-chardev", chardev(vm.BellSocket, filepath.Join(e.dir, vm.BellSocket)), "-device", port(3, vm.BellSocket, vmagent.BellPort))
}

func guestAgentCommand(o *options) *cobra.Command {
	var name, mode string
	var share int
	var leashed bool
	c := &cobra.Command{
		Use:   "agent",
		Short: "serve the device to programs in this virtual machine, in the foreground",
		Long: `Runs in a virtual machine, as root. It serves the RDMA device of the guest's NIC (vrdma guest
args) to programs, on a socket as a daemon does: vrdma run works. The agent pins memory that
programs register, up to --pin percent of the guest's memory. The programs' own limit of
locked memory does not apply.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if !leashed {
				return leash()
			}
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			go func() {
				io.Copy(io.Discard, os.NewFile(leashFile, "leash"))
				stop()
			}()
			if err := vmagent.HasPort(); err != nil {
				return lacks("%w", err)
			}
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
			// The previous agent may still wait until the daemon has released its pages.
			for end := time.Now().Add(agentHandover); err != nil && ctx.Err() == nil && time.Now().Before(end); claim, err = place.Claim(false) {
				time.Sleep(50 * time.Millisecond)
			}
			if err != nil {
				return lacks("%w", err)
			}
			defer claim.Release()
			if err := launch.InstallLibraries(place, launch.DirectoryMode(m)); err != nil {
				return err
			}
			// A signal to all processes of a service or session ends the parent; this process waits for the daemon: see leash.
			signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
			err = vmagent.Run(ctx, vmagent.Config{
				Socket: place.Socket, Mode: m, Tree: place.Sysfs(), Name: name, Share: share,
				Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			})
			if err != nil {
				return lacks("%w", err)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&leashed, "leashed", false, "be the agent itself")
	c.Flags().MarkHidden("leashed") // fails only for a flag that is not there
	c.Flags().StringVar(&name, "name", "", "the machine's name, for vrdma status on the host (default: its host name)")
	c.Flags().StringVar(&mode, "mode", "0666", "the socket's permissions; 0600: only root")
	c.Flags().IntVar(&share, "pin", 50, "percentage of the guest's memory that all programs together may register")
	return c
}

const (
	// leashFile is the descriptor whose end of file ends the agent.
	leashFile = 3
	// agentHandover bounds how long an agent waits for the previous one.
	agentHandover = 20 * time.Second
)

// leash runs the agent in a child process and holds the other end of a pipe to it. The agent's process owns
// the pinned memory: if it died at once, the guest's kernel would reuse pages that the daemon still writes
// to. A signal therefore ends only this parent, and the agent waits for the daemon before it ends.
func leash() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	agent := exec.Command("/proc/self/exe", append(os.Args[1:], "--leashed")...)
	agent.Stdout, agent.Stderr, agent.ExtraFiles = os.Stdout, os.Stderr, []*os.File{r}
	agent.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = agent.Start()
	r.Close()
	if err != nil {
		return lacks("%w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, func() { w.Close() })
	err = agent.Wait()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) && ended.Exited() {
		return &exit.Error{Status: ended.ExitCode()} // the agent printed the reason
	}
	if err != nil {
		return fmt.Errorf("the agent: %w", err)
	}
	return nil
}
