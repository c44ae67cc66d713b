package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/instrument/goperf"
)

func goperfCommand(o *options) *cobra.Command {
	var f goperf.Config
	c := &cobra.Command{
		Use:   "goperf TEST ADDRESS:PORT",
		Short: "measure package verbs between two processes",
		Long: `Measures package verbs as perftest measures libibverbs: one process with --server, another
without. The client prints two numbers: median and average of half a round trip in seconds,
or bytes and messages a second. echo and bulk measure package stream, with --tcp a TCP
connection instead.`,
		Hidden:    true, // a tool of vrdma bench
		ValidArgs: goperf.Tests(),
		Args:      cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			f.Test, f.Addr = args[0], args[1]
			place, err := o.place()
			if err != nil {
				return err
			}
			f.Device.Socket = place.Socket
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			// Not on the main goroutine, which is locked to its thread: waking it costs a thread switch that
			// other Go programs do not have.
			done := make(chan error, 1)
			go func() { done <- goperf.Run(ctx, c.OutOrStdout(), f) }()
			if err := <-done; err != nil {
				return fmt.Errorf("goperf %s: %w", strings.Join(args, " "), err)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&f.Server, "server", false, "be the server, for one client")
	c.Flags().IntVar(&f.Size, "size", 64, "bytes of a message")
	c.Flags().IntVar(&f.Count, "count", 1000, "how many messages")
	c.Flags().BoolVar(&f.Events, "events", false, "wait for completions instead of polling")
	c.Flags().BoolVar(&f.Sleep, "sleep", false, "wait for completions, and sleep at once")
	c.Flags().BoolVar(&f.TCP, "tcp", false, "echo and bulk: over TCP")
	c.Flags().IntVar(&f.Buffer, "buffer", 0, "echo and bulk: bytes of each buffer of a connection")
	return c
}
