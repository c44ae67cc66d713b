package main

import (
	"os"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/daemon"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/platform/launch"
)

func daemonCommand(o *options) *cobra.Command {
	f, detach := daemon.Options{Version: version}, false
	c := &cobra.Command{
		Use:   "daemon",
		Short: "run the RDMA device in the foreground",
		Long: `Serves the device rxe0 on a unix socket until SIGTERM or SIGINT. Programs use it with
vrdma run, containers with vrdma nic args or, with --cdi, as devices of their engine.

vrdma stop, vrdma pcap and the status of all users use a control socket outside that
directory: HASH.sock in vrdma-control-UID of /run, /run/user/UID, /tmp or /var/tmp, the first
that can be used. It answers this user and root, and no container. Other users' share of the
daemon's resources is limited; vrdma status -o json shows it.

The first vrdma apply creates a file for declared objects: --store, or this daemon's own in
$XDG_STATE_HOME/vrdma, for root /var/lib/vrdma, else ~/.local/state/vrdma, or beside the
socket. The next daemon at the same socket reads it, also one that vrdma run starts.

Daemons of many hosts share a store in etcd: --store etcd://A:2379,B:2379,C:2379, with
credentials in the file of --store-config. Each daemon keeps a copy where its own file would
be, and continues and starts with the copy while etcd is unreachable.

Administrators of tenants use HASH.sock in vrdma-tenants-UID beside the control socket's
directory. It exists while a tenant has administrators.

A file for --config; all lines are optional, and flags override them:

  socket: /run/vrdma/vrdma.sock
  addr: [192.0.2.10, 127.0.0.1]
  underlay: [192.0.2.10]
  overlay:
    port: 4789
    tunnelPort: 51820
  limits:               # of NIC default, for each opened device; also pds, cqs, mrs, mws,
    qps: 1000           # srqs, ahs, channels. Declared NICs have their own limits
    memory: 1073741824  # registered bytes, for each process`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if detach {
				return launch.Detach(undetached(os.Args[1:]))
			}
			f.Place = func(socket string) (launch.Place, error) {
				if o.socket == "" {
					o.socket = socket
				}
				if f.Ephemeral {
					return o.placeBy(launch.Default)
				}
				return o.placeBy(launch.ForDaemon)
			}
			err := daemon.Run(f)
			launch.Ready(err) // has no effect if the daemon was ready before
			return err
		},
	}
	c.Flags().StringVar(&f.Config, "config", "", "a YAML file with socket, addr, limits")
	c.Flags().StringSliceVar(&f.Addr, "addr", nil, "the addresses that become the device's GIDs (default: this machine's, loopback last)")
	c.Flags().StringVar(&f.Mode, "mode", "0600", "the socket's permissions; 0666 lets other users in")
	c.Flags().StringVar(&f.LogFormat, "log-format", "text", "text or json")
	c.Flags().StringVar(&f.LogLevel, "log-level", "info", "debug, info, warn or error")
	c.Flags().BoolVar(&f.Network, "network", true, "serve other hosts: RoCEv2 on UDP port 4791 of all addresses but loopback")
	c.Flags().StringSliceVar(&f.Underlay, "underlay", nil, "source addresses for packets of virtual networks between hosts, at most one IPv4 and one IPv6 address (default: the first of --addr, else those of the default route)")
	c.Flags().IntVar(&f.OverlayPort, "overlay-port", overlay.DefaultPort, "the UDP port for packets of virtual networks (VXLAN); opened when a network has members on other hosts")
	c.Flags().IntVar(&f.TunnelPort, "tunnel-port", overlay.DefaultTunnelPort, "the UDP port for packets of encrypted networks (WireGuard); opened when such a network has members on other hosts")
	c.Flags().StringVar(&f.TunnelKey, "tunnel-key", "", "the file of this host's WireGuard private key, created when needed (default: in the default directory of --store)")
	c.Flags().BoolVar(&f.NoGSO, "no-gso", false, "send each packet with its own system call")
	c.Flags().BoolVar(&f.NoGRO, "no-gro", false, "receive each packet with its own system call")
	c.Flags().BoolVar(&f.NoRecognise, "no-recognise", false, "treat other vrdma hosts like the kernel's rxe: use no protocol extension")
	c.Flags().BoolVar(&f.NoDefault, "no-default-nic", false, "have declared NICs only: programs name theirs with vrdma run --nic, or have its directory mounted; --addr lists the addresses for NICs of networks with way host")
	c.Flags().StringVar(&f.Store, "store", "", "the file for declared objects, or etcd://HOST:PORT,… for many hosts")
	c.Flags().StringVar(&f.HostName, "host-name", "", "this host's name in spec.host of NICs (default: the machine's name)")
	c.Flags().StringVar(&f.StoreConfig, "store-config", "", "a YAML file with ca, certificate, key, user, passwordFile for etcd; files with secrets must be readable for this user only")
	c.Flags().BoolVar(&f.Ephemeral, "ephemeral", false, "end after the last program has ended")
	c.Flags().BoolVar(&f.Takeover, "takeover", false, "take over from the daemon that serves the socket: programs and their connections continue (vrdma upgrade does this)")
	c.Flags().StringVar(&f.Usage, "usage", "", "the file for usage records; none: keep none (default: beside the store; none with --ephemeral)")
	c.Flags().StringVar(&f.Metrics, "metrics", "", "serve metrics for Prometheus, /healthz and /readyz at HOST:PORT (default: none)")
	c.Flags().BoolVar(&f.PerNIC, "metrics-per-nic", false, "add the label nic to metrics, for at most 256 NICs")
	c.Flags().StringVar(&f.CDI, "cdi", "", "the directory for CDI files, with which podman and other engines find the NICs (vrdma cdi prints them); none: write none (default: "+daemon.SystemCDI+" for root's daemon with its socket in /run or /var/lib; else none)")
	c.Flags().StringVar(&f.Hook, "hook", "", "the path of vrdma in the engines' mount namespace, for hooks in CDI files; none: no hooks (default: this program). Needed if the daemon is in a container")
	c.Flags().StringSliceVar(&f.Guests, "guest", nil, "NICs for programs in virtual machines, default or TENANT/NAME: creates sockets for QEMU, see vrdma guest args (default: none)")
	c.Flags().StringVar(&f.Profile, "cpuprofile", "", "write a CPU profile to this file at the end, for go tool pprof")
	c.Flags().BoolVar(&detach, "detach", false, "start in the background, for vrdma run")
	c.Flags().MarkHidden("detach") // fails only for a flag that is not there
	return c
}

// undetached returns a command line without --detach.
func undetached(args []string) []string {
	var out []string
	for _, a := range args {
		if a != "--detach" {
			out = append(out, a)
		}
	}
	return out
}
