package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/show"
	"vrdma.dev/vrdma/internal/daemon"
	"vrdma.dev/vrdma/internal/platform/launch"
)

func reloadCommand(o *options) *cobra.Command {
	f, upgrade := daemon.NewOptions(), false
	c := &cobra.Command{
		Use:   "reload",
		Short: "make the daemon read its configuration file again",
		Long: `Makes the daemon read the file of its --config again, as SIGHUP does. It prints what has changed, and
what needs a restart. If the file has a mistake nothing changes.

With --upgrade, if this vrdma is another program than the daemon's, the daemon hands over to it as with
vrdma upgrade. The next daemon reads the file. If the daemon cannot hand over, it reads the
file, and the command fails with the reason. The service's systemctl reload does this.

It accepts the flags of vrdma daemon, so that a unit can have one list for both. Only --socket and
--config have an effect.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			f.Given = c.Flags().Changed
			if err := f.Load(); err != nil {
				return usage("%w", err)
			}
			o.useSocket(f.Socket)
			place, err := o.place()
			if err != nil {
				return err
			}
			if upgrade {
				return reloadProgram(c.OutOrStdout(), place)
			}
			return reloadConfig(c.OutOrStdout(), place)
		},
	}
	settingFlags(c.Flags(), f)
	c.Flags().VisitAll(func(s *pflag.Flag) { s.Hidden = true })
	c.Flags().StringVar(&f.Config, "config", "", "the daemon's configuration file, which may name its socket")
	c.Flags().BoolVar(&upgrade, "upgrade", false, "replace the daemon if this vrdma is another program than the daemon's")
	return c
}

// reloadConfig makes a daemon read its configuration again, and prints what has changed.
func reloadConfig(w io.Writer, place launch.Place) error {
	lines, err := protocol.ReloadDaemon(place.Socket)
	if err != nil {
		return unanswered(place, err)
	}
	for _, l := range lines {
		fmt.Fprintln(w, show.Plain(l))
	}
	if len(lines) == 0 {
		fmt.Fprintln(w, "nothing has changed")
	}
	return nil
}

// reloadProgram makes a daemon hand over to this program if it runs another one; else, or if it cannot, it reads its configuration
// again.
func reloadProgram(w io.Writer, place launch.Place) error {
	s, err := protocol.QueryStatus(place.Socket)
	if err != nil {
		return unanswered(place, err)
	}
	same, err := samePrograms(fmt.Sprintf("/proc/%d/exe", s.Pid), "/proc/self/exe")
	if err != nil {
		return fmt.Errorf("the daemon's program cannot be compared with this one: %w", err)
	}
	if same {
		return reloadConfig(w, place)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if err := replace(w, place, s, program); err != nil {
		return errors.Join(err, reloadConfig(w, place))
	}
	return nil
}

// samePrograms reports whether two files are one, or have the same content: a package that is installed again has other files.
func samePrograms(a, b string) (bool, error) {
	f, err := os.Open(a)
	if err != nil {
		return false, err
	}
	defer f.Close()
	g, err := os.Open(b)
	if err != nil {
		return false, err
	}
	defer g.Close()
	fi, err := f.Stat()
	if err != nil {
		return false, err
	}
	gi, err := g.Stat()
	if err != nil || os.SameFile(fi, gi) || fi.Size() != gi.Size() {
		return err == nil && os.SameFile(fi, gi), err
	}
	return sameContent(f, g)
}

// sameContent reports whether two readers of the same length have the same content.
func sameContent(f, g io.Reader) (bool, error) {
	x, y := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, err := io.ReadFull(f, x)
		if err == io.EOF {
			return true, nil
		}
		if err != nil && err != io.ErrUnexpectedEOF {
			return false, err
		}
		if _, err := io.ReadFull(g, y[:n]); err != nil {
			return false, err
		}
		if !bytes.Equal(x[:n], y[:n]) {
			return false, nil
		}
	}
}
