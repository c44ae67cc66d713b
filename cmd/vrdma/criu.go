package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/platform/criu"
	"vrdma.dev/vrdma/internal/platform/launch"
)

func criuCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:    "criu",
		Short:  "what CRIU's plugin runs when it moves a container",
		Hidden: true,
		Args:   cobra.NoArgs,
	}
	add := func(use, short string, run func(out io.Writer, place launch.Place, number int) error) {
		c.AddCommand(&cobra.Command{
			Use: use + " NUMBER", Short: short, Hidden: true, Args: cobra.ExactArgs(1),
			RunE: func(c *cobra.Command, args []string) error {
				number, err := strconv.Atoi(args[0])
				if err != nil {
					return usage("%s: want a number", args[0])
				}
				place, err := o.placeOfNIC() // CRIU has no environment
				if err != nil {
					return err
				}
				return run(c.OutOrStdout(), place, number)
			},
		})
	}
	add("leave", "make the NICs of a process leave this host", criuLeave)
	add("settle", "make NICs stay whose programs live when CRIU has ended", criu.Settle)
	add("arrive", "make the NICs of the images arrive", func(out io.Writer, place launch.Place, _ int) error { return criu.Arrive(out, place) })
	return c
}

// criuLeave makes the NICs leave that a process or its descendants use.
func criuLeave(out io.Writer, place launch.Place, pid int) error {
	s, err := protocol.QueryStatus(place.Socket)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		fmt.Fprintf(out, "no daemon serves %s: the processes have no NIC\n", place.Socket)
		return nil
	}
	if err != nil {
		return unanswered(place, err)
	}
	return criu.Leave(out, place, s, pid)
}
