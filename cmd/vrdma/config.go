package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/daemon"
)

func configCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "check and print the daemon's configuration file",
		Long: `The configuration file of vrdma daemon --config has everything that the daemon's flags can say.
The service reads ` + daemon.SystemConfig + `.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(configCheckCommand(), configPrintCommand())
	return c
}

func configCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "find mistakes in a configuration file",
		Long: `Reads a configuration file as the daemon does, and prints every mistake with its line. Without a
file it checks ` + daemon.SystemConfig + `. It does not look whether addresses and files exist.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			path := daemon.SystemConfig
			if len(args) == 1 {
				path = args[0]
			}
			if err := daemon.CheckConfig(path); err != nil {
				return usage("%w", err)
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: no mistakes\n", path)
			return nil
		},
	}
}

func configPrintCommand() *cobra.Command {
	o := daemon.NewOptions()
	c := &cobra.Command{
		Use:   "print [FILE]",
		Short: "print all settings of the daemon as a configuration file",
		Long: `Prints every setting with its meaning and value: that of a flag, else of the file, else the
default. Settings with their default value are comments. Without a file it prints a file to
start with.`,
		Example: "  vrdma config print > vrdma.yaml\n  vrdma config print --log-level debug /etc/vrdma/vrdma.yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o.Given = c.Flags().Changed
			if len(args) == 1 {
				o.Config = args[0]
			}
			if err := o.Load(); err != nil {
				return usage("%w", err)
			}
			_, err := os.Stdout.WriteString(o.PrintConfig())
			return err
		},
	}
	settingFlags(c.Flags(), o)
	return c
}
