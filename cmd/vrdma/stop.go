package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"vrdma/internal/launch"
)

func stopCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "stop the daemon",
		Long: `Asks the daemon to end and waits until it is gone. Programs that use it get
DEVICE_FATAL on their async descriptor and EIO on every further command.`,
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
					return fmt.Errorf("no daemon serves %s: nothing to stop", place.Socket)
				}
				return fmt.Errorf("cannot stop the daemon at %s: %w", place.Socket, err)
			}
			for ctx.Err() == nil {
				if _, err := probe(ctx, place); errors.Is(err, launch.ErrAbsent) {
					return nil
				}
				time.Sleep(5 * time.Millisecond)
			}
			return fmt.Errorf("the daemon at %s agreed to stop and is still there", place.Socket)
		},
	}
}
