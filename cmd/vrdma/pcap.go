package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
)

func pcapCommand(o *options) *cobra.Command {
	var file string
	var outer bool
	c := &cobra.Command{
		Use:   "pcap [-w FILE] [--outer]",
		Short: "capture the device's packets",
		Long: `Captures every RoCEv2 packet of the device, also between programs of this machine, until
interrupted. Wireshark and tshark read the file:

  vrdma pcap -w roce.pcap
  vrdma pcap | tshark -r -

Packets of virtual networks are shown as their members see them; --outer shows them in VXLAN,
as between hosts, without encryption.

Local traffic never becomes packets; the capture contains the packets that it would be. A slow
reader misses packets, and the daemon's log says how many.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			out := os.Stdout
			if i, err := out.Stat(); file == "" && err == nil && i.Mode()&os.ModeCharDevice != 0 {
				return usage("a capture is not for a terminal: name a file with -w, or pipe it into tshark -r -")
			}
			capture, err := protocol.OpenCapture(place.Socket, outer)
			if err != nil {
				if absent(err) {
					return fmt.Errorf("cannot capture at %s: %w; start a daemon with vrdma daemon", place.Socket, err)
				}
				return fmt.Errorf("cannot capture at %s: %w", place.Socket, err)
			}
			if file != "" && file != "-" {
				if out, err = os.Create(file); err != nil {
					capture.Close()
					return err
				}
			}
			return errors.Join(record(capture, out), out.Close())
		},
	}
	c.Flags().BoolVar(&outer, "outer", false, "show packets of virtual networks as between hosts: VXLAN")
	c.Flags().StringVarP(&file, "write", "w", "", "the capture file; - is standard output")
	return c
}

// record copies the capture until a signal or the daemon's end.
func record(capture *protocol.Capture, out io.Writer) error {
	var ended atomic.Bool
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		<-signals
		ended.Store(true)
		capture.Close()
	}()
	n, err := io.Copy(out, capture)
	capture.Close()
	fmt.Fprintf(os.Stderr, "vrdma: captured %d bytes\n", n)
	if ended.Load() {
		return nil
	}
	if errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "vrdma: the daemon ended")
		return nil
	}
	return err
}
