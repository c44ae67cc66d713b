package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/show"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// This file has what the commands about declared objects share: apply, get, describe, delete and
// policy test. All of them ask the daemon; none opens its store.

// objectFiles are the values of -f: files, directories, or - for standard input.
type objectFiles []string

func (f *objectFiles) flag(c *cobra.Command, what string) {
	c.Flags().StringArrayVarP((*[]string)(f), "file", "f", nil, what+": a file, a directory (its .yaml, .yml and .json files), or - for standard input; may be repeated")
}

// read returns the content of all files.
func (f objectFiles) read(stdin io.Reader) ([]control.File, error) {
	var out []control.File
	for _, name := range f {
		if name == "-" {
			text, err := io.ReadAll(stdin)
			if err != nil {
				return nil, err
			}
			out = append(out, control.File{Name: "<stdin>", Text: string(text)})
			continue
		}
		paths, err := filesOf(name)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			out = append(out, control.File{Name: path, Text: string(text)})
		}
	}
	return out, nil
}

// filesOf returns a file itself, or the object files of a directory.
func filesOf(name string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return []string{name}, err
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && !e.IsDir() {
			paths = append(paths, filepath.Join(name, e.Name()))
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s has no .yaml, .yml or .json files", name)
	}
	return paths, nil
}

// objectKey parses the name of an object: NAME for a tenant or host, else TENANT/NAME, or NAME with
// -t TENANT. With anyTenant the tenant may be omitted.
func objectKey(kind tenant.Kind, name, of string, anyTenant bool) (tenant.Key, error) {
	k := tenant.Key{Kind: kind, Name: name}
	if kind == tenant.KindTenant || kind == tenant.KindHost {
		return k, nil
	}
	before, after, slash := strings.Cut(name, "/")
	if k.Tenant = of; slash {
		k.Tenant, k.Name = before, after
	}
	switch {
	case slash && of != "" && of != before:
		return k, usage("%s is not of tenant %s: leave -t out, or the tenant in the name", name, of)
	case k.Tenant == "" && !anyTenant:
		return k, usage("%s: which tenant's? Write TENANT/%s, or -t TENANT", name, name)
	}
	return k, nil
}

// kindArg parses a KIND.
func kindArg(text string) (tenant.Kind, error) {
	kind, err := tenant.ParseKind(text)
	if err != nil {
		return "", usage("%w", err)
	}
	return kind, nil
}

// objectsError converts an error of a request about objects.
func objectsError(place launch.Place, err error) error {
	var refused *control.Error
	if errors.As(err, &refused) {
		return problems(refused.Problems)
	}
	return unanswered(place, err)
}

// problems joins errors into one.
func problems(lines []string) error {
	if len(lines) == 1 {
		return errors.New(lines[0])
	}
	return fmt.Errorf("%d problems, and nothing was changed:\n%s", len(lines), strings.Join(lines, "\n"))
}

// printResults prints the result for each object, as kubectl does.
func printResults(c *cobra.Command, r *control.Reply, dryRun bool) {
	suffix := ""
	if dryRun {
		suffix = " (dry run)"
	}
	for _, result := range r.Results {
		fmt.Fprintf(c.OutOrStdout(), "%s %s%s\n", show.Key(result.Key), result.Verb, suffix)
	}
	for _, text := range r.Warnings {
		fmt.Fprintln(c.ErrOrStderr(), "vrdma: warning:", show.Plain(text))
	}
}
