package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/show"
)

func topCommand(o *options) *cobra.Command {
	var output, sort string
	var every time.Duration
	var once bool
	c := &cobra.Command{
		Use:   "top",
		Short: "show rates, drops and processor time of tenants and NICs",
		Long: `Shows every second, for each tenant and NIC: bytes and messages per second sent and received;
retransmitted packets, and packets dropped and requests denied by reason; connections and
registered memory; the daemon's processor time (100 % is one core). If the daemon has several loops,
the second line shows how busy each is and how many open devices it serves (sessions). The
daemon's owner sees all tenants, administrators their tenant, other users the NIC of their socket.

Keys: o, i, m, d, c sort by bytes out, bytes in, messages, drops, processor; n by name; t
switches between tenants only and tenants with NICs; q quits.

With --once, or if the output is no terminal, the table is printed once, after --every.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usage("-o %s: choose text or json", output)
			}
			if every < 100*time.Millisecond {
				return usage("--every %v: at least 100ms", every)
			}
			key, ok := show.SortNamed(sort)
			if !ok {
				return usage("--sort %s: choose out, in, messages, drops, cpu or name", sort)
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			ask := func() (*protocol.Top, error) {
				t, err := protocol.QueryTop(place.Socket)
				if err != nil {
					return nil, unanswered(place, err)
				}
				return t, nil
			}
			if output == "text" && !once && onTerminal(os.Stdout) && onTerminal(os.Stdin) {
				return watchTop(ask, every, key)
			}
			before, err := ask()
			if err != nil {
				return err
			}
			time.Sleep(every)
			now, err := ask()
			if err != nil {
				return err
			}
			if output == "json" {
				return show.TopJSON(c.OutOrStdout(), before, now)
			}
			return show.Top(c.OutOrStdout(), before, now, show.TopView{Sort: key})
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	c.Flags().StringVar(&sort, "sort", "name", "sort by out, in, messages, drops, cpu or name")
	c.Flags().DurationVar(&every, "every", time.Second, "interval between updates, over which rates are computed")
	c.Flags().BoolVar(&once, "once", false, "print the table once")
	return c
}

// onTerminal reports whether f is a terminal.
func onTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// watchTop shows the table until a key or a signal ends it. The terminal is left as it was.
func watchTop(ask func() (*protocol.Top, error), every time.Duration, key show.SortKey) error {
	restore, err := keysAtOnce(os.Stdin)
	if err != nil {
		return err
	}
	defer restore()
	const enter, leave = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	fmt.Print(enter)
	defer fmt.Print(leave)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGWINCH)
	defer signal.Stop(signals)
	keys := make(chan byte)
	go func() {
		var b [1]byte
		for {
			if n, err := os.Stdin.Read(b[:]); n != 1 || err != nil {
				close(keys)
				return
			}
			keys <- b[0]
		}
	}()
	before, err := ask()
	if err != nil {
		return err
	}
	now, view := before, show.TopView{Sort: key}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		view.Width, view.Height = windowSize()
		if err := show.DrawTop(os.Stdout, before, now, view); err != nil {
			return err
		}
		select {
		case <-tick.C:
			next, err := ask()
			if err != nil {
				return err
			}
			before, now = now, next
		case k, ok := <-keys:
			if !ok || k == 'q' || k == 'Q' || k == 3 {
				return nil
			}
			view.Key(k)
		case s := <-signals:
			if s != syscall.SIGWINCH {
				return nil
			}
		}
	}
}

// keysAtOnce makes the terminal deliver keys one by one without echo.
func keysAtOnce(f *os.File) (restore func(), err error) {
	old, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, err
	}
	raw := *old
	raw.Lflag &^= unix.ICANON | unix.ECHO
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, &raw); err != nil {
		return nil, err
	}
	return func() { unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, old) }, nil
}

func windowSize() (width, height int) {
	s, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(s.Col), int(s.Row)
}
