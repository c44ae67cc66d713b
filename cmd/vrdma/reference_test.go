package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vrdma.dev/vrdma/test/docs"
)

// TestReference: docs/reference/commands.md equals the help texts of the commands.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Command line

Generated from the commands themselves by ` + "`make docs`" + `: do not edit. ` + "`vrdma COMMAND --help`" + ` prints the same text.
Environment variables and exit statuses are in [environment.md](environment.md). Every command takes ` + "`--socket PATH`" + `.

| command | |
|---|---|
`)
	root := rootCommand()
	var commands []*cobra.Command
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Hidden || sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			commands = append(commands, sub)
			walk(sub)
		}
	}
	walk(root)
	for _, c := range commands {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), cell(c.Short))
	}
	for _, c := range commands {
		fmt.Fprintf(&b, "\n## %s\n\n```\n%s\n```\n", c.CommandPath(), c.UseLine())
		text := strings.TrimSpace(c.Long)
		if text == "" {
			text = c.Short
		}
		fmt.Fprintf(&b, "\n```text\n%s\n```\n", text)
		if e := strings.Trim(c.Example, "\n"); e != "" {
			fmt.Fprintf(&b, "\n```sh\n%s\n```\n", e)
		}
		head := "\n| flag | default | |\n|---|---|---|\n"
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" || f.Name == "socket" {
				return
			}
			b.WriteString(head)
			head = ""
			kind, usage := pflag.UnquoteUsage(f)
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			if kind != "" {
				name += " " + kind
			}
			value := f.DefValue
			if value == "[]" || value == "false" {
				value = ""
			}
			if value != "" {
				value = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, cell(value), cell(usage))
		})
	}
	docs.Check(t, "docs/reference/commands.md", b.String())
}

// cell escapes a text for a table cell.
func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", "\\|"), "\n", " ")
}
