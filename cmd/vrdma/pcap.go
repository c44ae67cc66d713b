package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/net/pcap"
)

func pcapCommand(o *options) *cobra.Command {
	var file, format string
	var peers []string
	var req protocol.ControlRequest
	var count uint64
	c := &cobra.Command{
		Use:   "pcap [-w FILE] [--nic NIC] [--peer ADDRESS] [-c COUNT] [-s BYTES] [--outer]",
		Short: "capture the device's packets",
		Long: `Captures the RoCEv2 packets of the device, also between programs of this machine, until
interrupted. Wireshark and tshark read the file:

  vrdma pcap -w roce.pcapng --nic red/web
  vrdma pcap -c 100 -s 96 --peer 10.1.0.2 | tshark -r -

Packets of virtual networks are shown as their members see them; --outer shows them in VXLAN,
as between hosts, without encryption. --nic selects by the NIC's addresses: packets of other
tenants' NICs with the same addresses are captured, too.

Local traffic never becomes packets; the capture contains the packets that it would be. A slow
reader misses packets. The last line says how many, and so do the statistics of a pcapng file:
capture less with --nic, --peer and -s, or write to a faster disk.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			for _, text := range peers {
				a, err := netip.ParseAddr(text)
				if err != nil {
					return usage("--peer %s: want an IP address", text)
				}
				req.Peers = append(req.Peers, a.Unmap())
			}
			if req.Snap < 0 {
				return usage("-s %d: want a number of bytes", req.Snap)
			}
			if format == "" {
				format = "pcap"
				if strings.HasSuffix(file, ".pcapng") {
					format = "pcapng"
				}
			}
			if format != "pcap" && format != "pcapng" {
				return usage("--format %s: choose pcap or pcapng", format)
			}
			out := os.Stdout
			if i, err := out.Stat(); file == "" && err == nil && i.Mode()&os.ModeCharDevice != 0 {
				return usage("a capture is not for a terminal: name a file with -w, or pipe it into tshark -r -")
			}
			capture, err := protocol.OpenCapture(place.Socket, req)
			if err != nil {
				if absent(err) {
					return lacks("cannot capture at %s: %w; start a daemon with vrdma daemon", place.Socket, err)
				}
				return fmt.Errorf("cannot capture at %s: %w", place.Socket, err)
			}
			signals := make(chan os.Signal, 2) // before there is a file: then the capture can be ended
			signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
			defer signal.Stop(signals)
			if file != "" && file != "-" {
				if out, err = os.Create(file); err != nil {
					capture.Close()
					return err
				}
			}
			return errors.Join(record(capture, signals, out, format, count), out.Close())
		},
	}
	c.Flags().BoolVar(&req.Outer, "outer", false, "show packets of virtual networks as between hosts: VXLAN")
	c.Flags().StringVarP(&file, "write", "w", "", "the capture file; - is standard output")
	c.Flags().StringVar(&format, "format", "", "pcap or pcapng, which has statistics (default: pcapng if FILE ends in .pcapng)")
	c.Flags().StringVar(&req.NIC, "nic", "", "only packets from or to this NIC: TENANT/NAME, or default")
	c.Flags().StringSliceVar(&peers, "peer", nil, "only packets from or to this address; may be repeated")
	c.Flags().Uint64VarP(&count, "count", "c", 0, "end after so many packets (default: none)")
	c.Flags().IntVarP(&req.Snap, "snaplen", "s", 0, "capture so many bytes of each packet, from the IP header on (default: all)")
	return c
}

// record copies the capture until a signal, the last of count packets, or the daemon's end.
func record(capture *protocol.Capture, signals <-chan os.Signal, out io.Writer, format string, count uint64) error {
	var ended atomic.Bool
	go func() {
		for range signals {
			if ended.Swap(true) { // a second signal does not wait for the rest
				capture.Close()
				return
			}
			capture.Stop()
		}
	}()
	written, err := copyPackets(capture, out, format, count)
	capture.Close()
	if count > 0 && written == count {
		ended.Store(true)
	}
	if told := capture.Counted(); told != nil {
		fmt.Fprintf(os.Stderr, "vrdma: captured %d packets, %d were left out because the reader was too slow\n", written, told.LeftOut)
	} else {
		fmt.Fprintf(os.Stderr, "vrdma: captured %d packets\n", written)
	}
	switch {
	case ended.Load():
		return nil
	case err == nil, errors.Is(err, io.EOF):
		fmt.Fprintln(os.Stderr, "vrdma: the daemon ended")
		return nil
	}
	return err
}

// copyPackets writes the packets in a format, at most count of them unless that is 0.
func copyPackets(capture *protocol.Capture, out io.Writer, format string, count uint64) (written uint64, err error) {
	in, err := pcap.NewReader(capture)
	if err != nil {
		return 0, err
	}
	buffered := bufio.NewWriterSize(out, 256<<10)
	var write func(at time.Time, packet []byte, length int) error
	var ng *pcap.NGWriter
	if format == "pcapng" {
		if ng, err = pcap.NewNGWriter(buffered, in.LinkType(), "vrdma "+version); err != nil {
			return 0, err
		}
		write = ng.Write
	} else {
		old, err := pcap.NewWriter(buffered, in.LinkType())
		if err != nil {
			return 0, err
		}
		write = func(at time.Time, packet []byte, length int) error {
			if err := old.WriteShort(at, len(packet), length); err != nil {
				return err
			}
			_, err := buffered.Write(packet)
			return err
		}
	}
	if err := buffered.Flush(); err != nil {
		return 0, err
	}
	for err == nil && (count == 0 || written < count) {
		var at time.Time
		var packet []byte
		if at, packet, err = in.Next(); err != nil {
			break
		}
		if err := write(at, packet, in.Length()); err != nil {
			return written, err
		}
		written++
		if !capture.More() { // what follows may take long
			if err := buffered.Flush(); err != nil {
				return written, err
			}
		}
	}
	if err == nil { // there were enough
		capture.Stop()
		_, err = io.Copy(io.Discard, capture)
	}
	if told := capture.Counted(); told != nil && ng != nil {
		err = errors.Join(err, ng.Statistics(time.Now(), written+told.LeftOut, told.LeftOut))
	}
	return written, errors.Join(err, buffered.Flush())
}
