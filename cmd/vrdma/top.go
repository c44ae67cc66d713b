package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
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
			key, ok := sortNamed(sort)
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
				return jsonTop(c.OutOrStdout(), before, now)
			}
			return printTop(c.OutOrStdout(), before, now, topView{sort: key})
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	c.Flags().StringVar(&sort, "sort", "name", "sort by out, in, messages, drops, cpu or name")
	c.Flags().DurationVar(&every, "every", time.Second, "interval between updates, over which rates are computed")
	c.Flags().BoolVar(&once, "once", false, "print the table once")
	return c
}

// jsonTop prints the status of each NIC with its rates.
func jsonTop(w io.Writer, before, now *protocol.Top) error {
	type nicRates struct {
		protocol.NICStatus
		Rates map[string]float64 `json:"rates"` // of the counters, per second
	}
	out := struct {
		*protocol.Top
		Seconds float64    `json:"seconds"` // the interval of the rates
		NICs    []nicRates `json:"nics"`
	}{Top: now, Seconds: now.Time.Sub(before.Time).Seconds(), NICs: []nicRates{}}
	for _, r := range topRows(before, now) {
		n := nicRates{r.NICStatus, map[string]float64{}}
		for name, d := range r.rates {
			n.Rates[name] = d
		}
		out.NICs = append(out.NICs, n)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(out)
}

// onTerminal reports whether f is a terminal.
func onTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// watchTop shows the table until a key or a signal ends it. The terminal is left as it was.
func watchTop(ask func() (*protocol.Top, error), every time.Duration, key sortKey) error {
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
	now, view := before, topView{sort: key}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		view.width, view.height = windowSize()
		if err := drawTop(os.Stdout, before, now, view); err != nil {
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
			view.key(k)
		case s := <-signals:
			if s != syscall.SIGWINCH {
				return nil
			}
		}
	}
}

// drawTop fills the screen. Every line ends with an escape sequence that clears the rest of it.
func drawTop(w io.Writer, before, now *protocol.Top, v topView) error {
	var table bytes.Buffer
	if err := printTop(&table, before, now, v); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimRight(table.String(), "\n"), "\n")
	if v.height > 1 && len(lines) > v.height-1 {
		lines = lines[:v.height-1]
	}
	var out bytes.Buffer
	out.WriteString("\x1b[H")
	for _, l := range lines {
		if r := []rune(l); v.width > 0 && len(r) > v.width {
			l = string(r[:v.width])
		}
		out.WriteString(l + "\x1b[K\r\n")
	}
	out.WriteString("\x1b[J")
	_, err := w.Write(out.Bytes())
	return err
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
