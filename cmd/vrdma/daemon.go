package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vrdma.dev/vrdma/internal/daemon"
	"vrdma.dev/vrdma/internal/platform/launch"
)

func daemonCommand(o *options) *cobra.Command {
	f, detach := daemon.NewOptions(), false
	f.Version = version
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

The file of --config has everything that flags can say, and limits of NIC default. Flags override
it. vrdma config print shows all names, vrdma config check FILE finds mistakes. After SIGHUP, or
with vrdma reload, the daemon reads it again.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if detach {
				return launch.Detach(undetached(os.Args[1:]))
			}
			f.Place = func(socket string) (launch.Place, error) {
				o.useSocket(socket)
				if f.Ephemeral {
					return o.placeBy(launch.Default)
				}
				return o.placeBy(launch.ForDaemon)
			}
			f.Given = c.Flags().Changed
			err := daemon.Run(*f)
			launch.Ready(err) // has no effect if the daemon was ready before
			return err
		},
	}
	c.Flags().StringVar(&f.Config, "config", "", "a YAML file with everything that these flags can say, see vrdma config")
	settingFlags(c.Flags(), f)
	c.Flags().BoolVar(&f.Takeover, "takeover", false, "take over from the daemon that serves the socket: programs and their connections continue (vrdma upgrade does this)")
	c.Flags().BoolVar(&detach, "detach", false, "start in the background, for vrdma run")
	c.Flags().MarkHidden("detach") // fails only for a flag that is not there
	return c
}

// settingFlags adds the flags of a daemon's settings.
func settingFlags(flags *pflag.FlagSet, o *daemon.Options) {
	for _, s := range o.Settings() {
		if s.Flag == "" {
			continue
		}
		switch into := s.Into.(type) {
		case *string:
			flags.StringVar(into, s.Flag, *into, s.Help)
		case *[]string:
			flags.StringSliceVar(into, s.Flag, *into, s.Help)
		case *bool:
			flags.BoolVar(into, s.Flag, *into, s.Help)
		case *int:
			flags.IntVar(into, s.Flag, *into, s.Help)
		}
	}
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
