package report

import (
	"fmt"
	"html/template"
	"io"
	"strings"
)

// A File is a figure for a paper: a drawing as SVG, or its values as CSV.
type File struct {
	Name  string
	Write func(io.Writer) error
}

// Files returns a drawing and a table for each figure, and a drawing for each of its panels.
func Files(figures []Figure) (list []File) {
	for _, f := range figures {
		if len(f.Lines) == 0 {
			continue
		}
		list = append(list, File{f.fileName() + ".csv", func(w io.Writer) error { return writeCSV(w, []Figure{f}) }})
		if len(f.Panels) == 0 && f.Drawings() > 0 {
			list = append(list, drawingFile(f.fileName(), f))
		}
		for _, panel := range f.Panels {
			list = append(list, drawingFile(f.fileName()+"-"+strings.Join(strings.FieldsFunc(panel.name, func(r rune) bool { return r == ' ' || r == ',' }), "-"), panel))
		}
	}
	return list
}

// fileName is the name of a figure's files, without a suffix.
func (f *Figure) fileName() string {
	name := f.Experiment.Name + "-" + f.Metric
	if f.Apart != "" {
		name += "-" + strings.ReplaceAll(f.Apart, " ", "-")
	}
	return name
}

// legendRow is the height of a line of the legend below a drawing.
const legendRow = 18

// drawingFile is a drawing with its own style and legend, for use without the page.
func drawingFile(name string, f Figure) File {
	return File{name + ".svg", func(w io.Writer) error {
		plot := f.drawing()
		var names []legendView
		if f.By != "" {
			names = legend(f)
		}
		height := plot.Height + len(names)*legendRow
		if _, err := fmt.Fprintf(w, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\"><style>%s</style><svg width=\"%d\" height=\"%d\">\n", plot.Width, height, plot.Width, height, style, plot.Width, plot.Height); err != nil {
			return err
		}
		if err := pageTemplate.ExecuteTemplate(w, "plot", plot); err != nil {
			return err
		}
		if _, err := io.WriteString(w, "</svg>\n"); err != nil {
			return err
		}
		for i, n := range names {
			y := plot.Height + i*legendRow
			if _, err := fmt.Fprintf(w, "<g class=\"%s\" transform=\"translate(8 %d)\"><polyline points=\"1,6 33,6\"/>", n.Class, y); err != nil {
				return err
			}
			if err := pageTemplate.ExecuteTemplate(w, "mark", n.Mark); err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "<text class=\"name\" x=\"42\" y=\"10\">%s</text></g>\n", template.HTMLEscapeString(n.Name)); err != nil {
				return err
			}
		}
		_, err := io.WriteString(w, "</svg>\n")
		return err
	}}
}
