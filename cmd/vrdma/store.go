package main

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
)

func storeCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "store",
		Short: "export and import all declared objects",
	}
	c.AddCommand(storeExportCommand(o), storeImportCommand(o))
	return c
}

func storeExportCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "print all declared objects as YAML",
		Long: `Prints all declared objects, with allocated addresses and VNIs, as one YAML file for vrdma
store import and vrdma apply.`,
		Example: "  vrdma store export > backup.yaml\n  vrdma --socket A store export | vrdma --socket B store import --replace -",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			text, err := control.Export(place.Socket)
			if err != nil {
				return unanswered(place, err)
			}
			_, err = io.WriteString(os.Stdout, text)
			return err
		},
	}
}

func storeImportCommand(o *options) *cobra.Command {
	var replace, dryRun bool
	c := &cobra.Command{
		Use:   "import FILE",
		Short: "declare the objects of an export, all or none",
		Args:  cobra.ExactArgs(1),
		Long: `Declares the objects that vrdma store export has printed; - reads standard input. With
--replace all other objects are deleted, and programs that use them lose their device.`,
		RunE: func(c *cobra.Command, args []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			text, err := readArgument(args[0])
			if err != nil {
				return err
			}
			reply, err := control.Import(place.Socket, control.File{Name: args[0], Text: string(text)}, replace, dryRun)
			if err != nil {
				return unanswered(place, err)
			}
			printResults(c, reply, dryRun)
			return nil
		},
	}
	c.Flags().BoolVar(&replace, "replace", false, "delete all objects that are not in the file")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would happen")
	return c
}

// readArgument reads a file, or standard input.
func readArgument(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}

// unanswered returns an error with a remedy for a request that the daemon did not serve.
func unanswered(place launch.Place, err error) error {
	var said *control.Error
	var refusal *protocol.Refusal
	switch {
	case errors.As(err, &said), errors.As(err, &refusal):
		return err
	case absent(err):
		return lacks("no daemon serves %s: start one with vrdma daemon, or choose another with --socket", place.Socket)
	case errors.Is(err, fs.ErrPermission):
		return lacks("the daemon at %s denies access: its user and root have access, and administrators of its tenants if they name it with --socket", place.Socket)
	}
	return improper(place, err)
}
