package report

import (
	"fmt"
	"html"
	"strings"
)

// A table is what a suite has beside its figures, the same on the page and as text.
type table struct {
	title, why string
	head       []string
	rows       [][]field
	words      bool // its cells are sentences
}

// A field is a value, or why there is none.
type field struct {
	text string
	none bool
}

func value(format string, args ...any) field { return field{text: fmt.Sprintf(format, args...)} }

func reason(text string) field { return field{text: text, none: true} }

// add adds a row.
func (t *table) add(cells ...field) { t.rows = append(t.rows, cells) }

// html writes it for the page.
func (t *table) html(b *strings.Builder) {
	if t.words {
		fmt.Fprintf(b, "<details open><summary>%s</summary><div class=\"scroll\"><table class=\"words\"><thead><tr>", html.EscapeString(t.title))
	} else {
		fmt.Fprintf(b, "<h3>%s</h3><p class=\"why\">%s</p><div class=\"scroll\"><table><thead><tr>", html.EscapeString(t.title), html.EscapeString(t.why))
	}
	for _, text := range t.head {
		fmt.Fprintf(b, "<th>%s</th>", html.EscapeString(text))
	}
	b.WriteString("</tr></thead><tbody>")
	for _, row := range t.rows {
		b.WriteString("<tr>")
		for _, f := range row {
			class := ""
			if f.none {
				class = " class=\"none\""
			}
			text := html.EscapeString(f.text)
			if t.words { // a path may be broken where its parts meet
				text = strings.ReplaceAll(text, "/", "/<wbr>")
			}
			fmt.Fprintf(b, "<td%s>%s</td>", class, text)
		}
		b.WriteString("</tr>")
	}
	b.WriteString("</tbody></table></div>")
	if t.words {
		b.WriteString("</details>")
	}
	b.WriteString("\n")
}

// markdown writes it as text.
func (t *table) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s\n\n", t.title)
	if t.why != "" {
		fmt.Fprintf(b, "%s\n\n", t.why)
	}
	line := func(cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.head)
	line(strings.Split(strings.Repeat("--- ", len(t.head)-1)+"---", " "))
	for _, row := range t.rows {
		var cells []string
		for _, f := range row {
			cells = append(cells, strings.ReplaceAll(f.text, "|", "\\|"))
		}
		line(cells)
	}
}

// tablesOf are those of a suite.
func tablesOf(suite string, figures []Figure) (list []*table) {
	var all []*table
	switch suite {
	case "thesis":
		all = []*table{wordsTable(), costsTable(figures)}
	case "progress":
		all = []*table{groupsTable(figures), transferRatios(figures)}
	case "mikelangelo":
		all = []*table{casesTable(figures)}
	}
	for _, t := range all {
		if t != nil && len(t.rows) > 0 {
			list = append(list, t)
		}
	}
	return list
}
