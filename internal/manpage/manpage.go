// Package manpage makes manual pages (section 1) from the commands of cobra.
//
// cobra's own generator reads the help texts as Markdown, which ours are not: it would join the lines of examples and tables.
// Here every help text stays as it is written, in a block that the formatter does not fill.
package manpage

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vrdma.dev/vrdma/internal/buildinfo"
)

// Write writes the pages of a command and of all commands below it into a directory: vrdma.1, vrdma-run.1 …
func Write(c *cobra.Command, build buildinfo.Info, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, one := range visible(c) {
		if err := os.WriteFile(filepath.Join(dir, name(one)+".1"), Page(one, build), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// visible returns a command and those below it that help shows.
func visible(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
			all = append(all, visible(sub)...)
		}
	}
	return all
}

// name returns the name of a command's page: vrdma-nic-args.
func name(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// Page returns the page of a command. The date is that of the build's commit, so that a build can be repeated.
func Page(c *cobra.Command, build buildinfo.Info) []byte {
	var b bytes.Buffer
	day, _, _ := strings.Cut(build.Date, "T")
	fmt.Fprintf(&b, ".TH %s 1 %s %s %s\n", quote(strings.ToUpper(name(c))), quote(day), quote("vrdma "+build.Version), quote("vrdma"))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escape(name(c)), escape(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", escape(c.UseLine()))
	text := c.Long
	if text == "" {
		text = c.Short
	}
	b.WriteString(".SH DESCRIPTION\n")
	verbatim(&b, text)
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		verbatim(&b, c.Example)
	}
	head := ".SH OPTIONS\n"
	flag := func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		b.WriteString(head)
		head = ""
		kind, usage := pflag.UnquoteUsage(f)
		spelled := "--" + f.Name
		if f.Shorthand != "" {
			spelled = "-" + f.Shorthand + ", " + spelled
		}
		if kind != "" {
			spelled += " " + kind
		}
		fmt.Fprintf(&b, ".TP\n.B %s\n%s", escape(spelled), escape(usage))
		if d := f.DefValue; d != "" && d != "false" && d != "[]" && d != "0" {
			fmt.Fprintf(&b, " (default %s)", escape(d))
		}
		b.WriteByte('\n')
	}
	c.LocalFlags().VisitAll(flag)
	c.InheritedFlags().VisitAll(flag)
	var others []string
	if c.HasParent() {
		others = append(others, name(c.Parent()))
	}
	for _, sub := range visible(c)[1:] {
		if sub.Parent() == c {
			others = append(others, name(sub))
		}
	}
	if len(others) > 0 {
		b.WriteString(".SH SEE ALSO\n")
		for i, o := range others {
			comma := ","
			if i == len(others)-1 {
				comma = ""
			}
			fmt.Fprintf(&b, ".BR %s (1)%s\n", escape(o), comma)
		}
	}
	return b.Bytes()
}

// verbatim writes text whose lines stay as they are.
func verbatim(b *bytes.Buffer, text string) {
	b.WriteString(".nf\n")
	for line := range strings.Lines(strings.Trim(text, "\n") + "\n") {
		b.WriteString(escape(strings.TrimRight(line, "\n")) + "\n")
	}
	b.WriteString(".fi\n")
}

// escape makes text that roff prints as it is. A line that begins with a dot or an apostrophe would be a request, and a plain
// hyphen would become a typographic one, which cannot be copied into a shell.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// quote makes an argument of a request.
func quote(text string) string { return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"` }
