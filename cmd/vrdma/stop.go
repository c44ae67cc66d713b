package main

import (
	"context"

	"github.com/spf13/cobra"
)

func stopCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "stop the daemon",
		Long: `Asks the daemon to end and waits until it has ended. Programs that use it get DEVICE_FATAL on
their async descriptor and EIO from every further command.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
			defer cancel()
			if err := stop(ctx, place); err != nil {
				if absent(err) {
					return lacks("no daemon serves %s: nothing to stop", place.Socket)
				}
				return improper(place, err)
			}
			return place.AwaitEnd(ctx)
		},
	}
}
