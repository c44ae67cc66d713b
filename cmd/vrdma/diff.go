package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/show"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func diffCommand(o *options) *cobra.Command {
	var files objectFiles
	var prune bool
	c := &cobra.Command{
		Use:   "diff -f FILE",
		Short: "show what apply would change",
		Long: `Shows, as diff -u does, how the objects of files differ from those that are declared: what
vrdma apply with the same flags would change. The exit status is 0 if nothing would change, 1
if something would, more after an error.

  vrdma diff -f two-tenants.yaml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return usage("nothing to compare: vrdma diff -f FILE")
			}
			texts, err := files.read(c.InOrStdin())
			if err != nil {
				return lacks("%w", err)
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			reply, err := control.ApplyWith(place.Socket, texts, control.ApplyOptions{DryRun: true, Prune: prune, Changes: true})
			if err != nil {
				return lacks("%w", objectsError(place, err))
			}
			differ, err := printDifferences(c.OutOrStdout(), reply.Results)
			if err != nil {
				return lacks("%w", err)
			}
			for _, text := range reply.Warnings {
				fmt.Fprintln(c.ErrOrStderr(), "vrdma: warning:", show.Plain(text))
			}
			if differ {
				return &exit.Error{Status: 1, Err: errors.New("apply would change something")}
			}
			return nil
		},
	}
	files.flag(c, "what to compare")
	c.Flags().BoolVar(&prune, "prune", false, "also show what apply --prune would delete")
	return c
}

// printDifferences prints the changes of a dry run with diff(1), and reports whether there are any.
func printDifferences(w io.Writer, results []control.Result) (differ bool, err error) {
	dir, err := os.MkdirTemp("", "vrdma-diff")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	for _, r := range results {
		if r.Verb == "unchanged" {
			continue
		}
		differ = true
		var paths [2]string
		for i, object := range []string{r.Old, r.New} {
			paths[i] = filepath.Join(dir, []string{"old", "new"}[i])
			text, err := objectText(json.RawMessage(object))
			if err == nil {
				err = os.WriteFile(paths[i], text, 0o600)
			}
			if err != nil {
				return differ, err
			}
		}
		name := show.Key(r.Key)
		out, err := exec.Command("diff", "-u", "--label", "declared/"+name, "--label", "file/"+name, paths[0], paths[1]).Output()
		if e := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &e) || e.ExitCode() != 1) {
			return differ, fmt.Errorf("diff -u: %w", err)
		}
		w.Write(out)
	}
	return differ, nil
}

// objectText is an object as YAML; nothing for none.
func objectText(object json.RawMessage) ([]byte, error) {
	if len(object) == 0 {
		return nil, nil
	}
	o, err := tenant.Unmarshal(object)
	if err != nil {
		return nil, err
	}
	return tenant.YAML(o)
}

func editCommand(o *options) *cobra.Command {
	var of string
	c := &cobra.Command{
		Use:   "edit KIND NAME",
		Short: "change a declared object in an editor",
		Long: `Opens a declared object as YAML in $VISUAL, $EDITOR or vi, and applies it when the editor
ends. A text that cannot be applied stays in a file, which the error names.

  vrdma edit nic red/web`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			kind, err := kindArg(args[0])
			if err != nil {
				return err
			}
			key, err := objectKey(kind, args[1], of, false)
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			reply, err := control.Get(place.Socket, control.Selection{Kind: key.Kind, Tenant: key.Tenant, Name: key.Name})
			if err != nil {
				return objectsError(place, err)
			}
			if len(reply.Items) != 1 {
				return fmt.Errorf("there is no %v that you may see", key)
			}
			before, err := objectText(reply.Items[0].Object)
			if err != nil {
				return err
			}
			after, path, err := edited(before)
			if err != nil {
				return err
			}
			if bytes.Equal(before, after) {
				os.Remove(path)
				fmt.Fprintln(c.ErrOrStderr(), "nothing was changed")
				return nil
			}
			reply, err = control.Apply(place.Socket, []control.File{{Name: path, Text: string(after)}}, false)
			if err != nil {
				return fmt.Errorf("%w\nthe text is in %s: mend it, and run vrdma apply -f %[2]s", objectsError(place, err), path)
			}
			os.Remove(path)
			printResults(c, reply, false)
			return nil
		},
	}
	c.Flags().StringVarP(&of, "tenant", "t", "", "the tenant of a name without one")
	return c
}

// edited lets the user edit a text, in a file that the caller removes.
func edited(text []byte) (after []byte, path string, err error) {
	f, err := os.CreateTemp("", "vrdma-*.yaml")
	if err != nil {
		return nil, "", err
	}
	path = f.Name()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, path, err
	}
	editor := "vi"
	for _, name := range []string{"EDITOR", "VISUAL"} {
		if value := os.Getenv(name); value != "" {
			editor = value
		}
	}
	cmd := exec.Command("sh", "-c", editor+` "$1"`, "sh", path) // an editor may have arguments
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, path, fmt.Errorf("the editor %s: %w; the text is in %s", editor, err, path)
	}
	after, err = os.ReadFile(path)
	return after, path, err
}
