package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/report"
)

func reportCommand() *cobra.Command {
	var out string
	var figures bool
	c := &cobra.Command{
		Use:   "report DIR [AFTER | DIR... -o OUT]",
		Short: "make a page of results, or compare two results",
		Long: `Makes report.html, report.md and results.csv from the results of vrdma bench run. The page is
one file: no server, no network, every number with its source.

With two directories it compares them, cell by cell: medians, intervals, and the probability
of such a difference if nothing had changed (Mann-Whitney U).

With -o several directories become one page, for instance one suite in each. --figures also
writes every figure as SVG and its values as CSV, for papers.`,
		Example: `  vrdma bench run --out results && vrdma report results
  vrdma report before after
  vrdma report results/* -o page`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var results []*experiment.Results
			for _, dir := range args {
				r, err := experiment.Read(dir)
				if err != nil {
					return err
				}
				results = append(results, r)
			}
			if len(results) > 2 && out == "" {
				return usage("a page of %d results needs -o DIRECTORY", len(results))
			}
			if len(results) == 2 && out == "" {
				return report.Compare(c.OutOrStdout(), results[0], results[1])
			}
			if out == "" {
				out = args[0]
			}
			r, err := experiment.Merge(results)
			if err != nil {
				return err
			}
			return writeReport(c.OutOrStdout(), r, out, figures)
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "the directory for the report (default: DIR)")
	c.Flags().BoolVar(&figures, "figures", false, "also write figures/NAME.svg and figures/NAME.csv")
	return c
}

// writeReport writes the three files, and with each a file for every figure.
func writeReport(w io.Writer, r *experiment.Results, dir string, each bool) error {
	figures, err := report.Gather(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if r.Torn {
		fmt.Fprintln(w, "the last line of the results was cut off, and is left out: bench run --resume measures it again")
	}
	for _, page := range []struct {
		name  string
		write func(io.Writer) error
	}{
		{"report.html", func(w io.Writer) error { return report.HTML(w, r, figures) }},
		{"report.md", func(w io.Writer) error { return report.Markdown(w, r, figures) }},
		{"results.csv", func(w io.Writer) error { return report.CSV(w, figures) }},
	} {
		path := filepath.Join(dir, page.name)
		if err := writeWhole(path, 0o644, page.write); err != nil {
			return err
		}
		fmt.Fprintln(w, path)
	}
	if !each {
		return nil
	}
	dir = filepath.Join(dir, "figures")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range report.Files(figures) {
		if err := writeWhole(filepath.Join(dir, f.Name), 0o644, f.Write); err != nil {
			return err
		}
	}
	fmt.Fprintln(w, dir)
	return nil
}
