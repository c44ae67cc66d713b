package report

import (
	"fmt"
	"strings"
)

// A table of a suite, for the page and for Markdown.
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

// A tableView is a table for the page.
type tableView struct {
	Title, Why string
	Words      bool
	Head       []string
	Rows       [][]fieldView
}

// A fieldView is the text of a field, in parts between which a line may break.
type fieldView struct {
	Parts []string
	None  bool
}

// view prepares the table for the page. Lines of a table of sentences may break after each / of a path.
func (t *table) view() tableView {
	v := tableView{Title: t.title, Why: t.why, Words: t.words, Head: t.head}
	for _, row := range t.rows {
		var cells []fieldView
		for _, f := range row {
			cell := fieldView{Parts: []string{f.text}, None: f.none}
			if t.words {
				cell.Parts = strings.SplitAfter(f.text, "/")
			}
			cells = append(cells, cell)
		}
		v.Rows = append(v.Rows, cells)
	}
	return v
}

// markdown writes the table as Markdown.
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

// tablesOf returns the tables of a suite.
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
