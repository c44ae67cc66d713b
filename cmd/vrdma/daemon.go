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
		Short: "be the RDMA device, in the foreground",
		Long: `Serves the device rxe0 on a unix socket until SIGTERM or SIGINT. Programs reach it
with vrdma run, containers with vrdma nic args or, with --cdi, as devices of their engine.

vrdma stop, vrdma pcap and the status of all users go through a control socket outside
that directory: HASH.sock in vrdma-control-UID of /run, /run/user/UID, /tmp or /var/tmp,
the first that can be used. It answers this user and root, and no container. What other
users may make the daemon hold is limited; vrdma status -o json shows it.

What vrdma apply declares is kept in a file, which is made then: --store, or one of this
daemon's own in $XDG_STATE_HOME/vrdma, for root /var/lib/vrdma, else ~/.local/state/vrdma,
or beside the socket.
Daemons of many hosts share a store in etcd: --store etcd://A:2379,B:2379,C:2379, with
credentials in the file of --store-config. Each keeps a copy of what it last saw where its
file would be, and goes on, and starts, with that while etcd is away.
The next daemon at the same socket has it again, one that vrdma run starts too. While a
tenant has administrators, they are answered at HASH.sock in vrdma-tenants-UID beside the
control socket's directory.

A file for --config, every line of which may be left out, and over which flags win:

  socket: /run/vrdma/vrdma.sock
  addr: [192.0.2.10, 127.0.0.1]
  underlay: [192.0.2.10]
  overlay:
    port: 4789
    tunnelPort: 51820
  limits:               # of NIC default, for each opened device; also pds, cqs, mrs, mws,
    qps: 1000           # srqs, ahs, channels. Declared NICs have limits of their own
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
	c.Flags().BoolVar(&f.Network, "network", true, "serve other hosts too: RoCEv2 on UDP port 4791 of the addresses that are not loopback")
	c.Flags().StringSliceVar(&f.Underlay, "underlay", nil, "the addresses that packets of virtual networks travel between hosts from, one of IPv4 and one of IPv6 at most (default: the first of --addr, else those of the default route)")
	c.Flags().IntVar(&f.OverlayPort, "overlay-port", overlay.DefaultPort, "the UDP port for packets of virtual networks (VXLAN); opened when a network has members on other hosts")
	c.Flags().IntVar(&f.TunnelPort, "tunnel-port", overlay.DefaultTunnelPort, "the UDP port for packets of encrypted networks (WireGuard); opened when one has members on other hosts")
	c.Flags().StringVar(&f.TunnelKey, "tunnel-key", "", "the file of this host's private key for them, made when it is needed (default: a file of this daemon's own where --store is by default)")
	c.Flags().BoolVar(&f.NoGSO, "no-gso", false, "send each packet by itself")
	c.Flags().BoolVar(&f.NoGRO, "no-gro", false, "receive each packet by itself")
	c.Flags().BoolVar(&f.NoRecognise, "no-recognise", false, "treat other vrdma hosts as any host: nothing is used that the kernel's rxe would not understand")
	c.Flags().BoolVar(&f.NoDefault, "no-default-nic", false, "have no NIC but declared ones: programs name theirs with vrdma run --nic, or have its directory mounted; --addr then names the addresses for NICs of networks with way host")
	c.Flags().StringVar(&f.Store, "store", "", "the file that keeps declared objects, or etcd://HOST:PORT,… for many hosts")
	c.Flags().StringVar(&f.HostName, "host-name", "", "this host's name, as NICs name it (default: the machine's)")
	c.Flags().StringVar(&f.StoreConfig, "store-config", "", "a YAML file with ca, certificate, key, user, passwordFile for etcd; only this user may read the secrets")
	c.Flags().BoolVar(&f.Ephemeral, "ephemeral", false, "end when the last program is gone")
	c.Flags().StringVar(&f.Usage, "usage", "", "the file that keeps what tenants have used over restarts, none for none (default: beside the store; none with --ephemeral)")
	c.Flags().StringVar(&f.Metrics, "metrics", "", "serve metrics for Prometheus, /healthz and /readyz at HOST:PORT (default: not at all)")
	c.Flags().BoolVar(&f.PerNIC, "metrics-per-nic", false, "have NICs as a label in the metrics, 256 at most")
	c.Flags().StringVar(&f.CDI, "cdi", "", "the directory for CDI files, by which podman and others know the NICs (vrdma cdi prints them), none for none (default: "+daemon.SystemCDI+" for root's daemon with its socket in /run or /var/lib; else none)")
	c.Flags().StringVar(&f.Hook, "hook", "", "the path of vrdma as engines see it, for the hooks in CDI files, none for none (default: this program; one in a container of its own has another path)")
	c.Flags().StringSliceVar(&f.Guests, "guest", nil, "NICs for virtual machines, default or TENANT/NAME: sockets for QEMU are made, see vrdma guest args (default: none)")
	c.Flags().StringVar(&f.Profile, "cpuprofile", "", "write a CPU profile of the whole life to this file, for go tool pprof")
	c.Flags().BoolVar(&detach, "detach", false, "start in the background, for vrdma run")
	c.Flags().MarkHidden("detach") // fails only for a flag that is not there
	return c
}

// undetached is a command line without --detach.
func undetached(args []string) []string {
	var out []string
	for _, a := range args {
		if a != "--detach" {
			out = append(out, a)
		}
	}
	return out
}
