package speedtable

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A Report is the result of a run of the speed table.
type Report struct {
	Time    time.Time `json:"time"`
	Version string    `json:"version"`
	Machine Machine   `json:"machine"`
	Rows    []Row     `json:"rows"`
}

// Markdown writes the table for people.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "vrdma %s, %s, %s\n\n", r.Version, r.Machine, r.Time.UTC().Format("2006-01-02 15:04 UTC"))
	b.WriteString("| what | vrdma: median (least to most; average) | against: median (least to most) | measured | wanted | |\n|---|---|---|---|---|---|\n")
	for i := range r.Rows {
		row := &r.Rows[i]
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", row.What, spread(&row.Ours, true), spread(row.Against, false), row.result(), row.bound(), row.mark())
	}
	b.WriteString(r.remarks())
	_, err := io.WriteString(w, b.String())
	return err
}

// remarks lists the rows' notes, and each reason for missing rows once.
func (r *Report) remarks() string {
	var b strings.Builder
	missing := map[string][]string{}
	for _, row := range r.Rows {
		if row.Missing != "" {
			missing[row.Missing] = append(missing[row.Missing], row.What)
		}
	}
	for _, row := range r.Rows {
		if rows := missing[row.Missing]; len(rows) > 0 && rows[0] == row.What {
			fmt.Fprintf(&b, "\n%s: not measured: %s\n", strings.Join(rows, "; "), row.Missing)
		}
		if row.Note != "" {
			fmt.Fprintf(&b, "\n%s: %s\n", row.What, row.Note)
		}
	}
	return b.String()
}

// spread is a series in one cell.
func spread(s *Series, average bool) string {
	if s == nil || s.Name == "" {
		return ""
	}
	if len(s.Values) == 0 {
		return s.Name
	}
	return s.Name + ": " + s.summary(average)
}

// summary is the median and, with several values, their range.
func (s *Series) summary(average bool) string {
	text := experiment.Amount(s.Median(), s.Unit)
	if len(s.Values) < 2 {
		return text
	}
	low, high := s.Range()
	text += fmt.Sprintf(" (%s to %s", experiment.Amount(low, s.Unit), experiment.Amount(high, s.Unit))
	if average {
		text += "; " + experiment.Amount(s.Average(), s.Unit)
	}
	return text + ")"
}

// JSON writes the report for programs.
func (r *Report) JSON(w io.Writer) error { return WriteJSON(w, r) }

// WriteJSON writes v as indented JSON.
func WriteJSON(w io.Writer, v any) error {
	content, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(content, '\n'))
	return err
}

// Write writes the report to dir as JSON and Markdown, named by the time.
func (r *Report) Write(dir string) (path string, err error) {
	return WriteFiles(dir, r.Time.UTC().Format("20060102-150405"), r)
}

// A Result is the result of a run, which can be printed and stored.
type Result interface {
	Markdown(io.Writer) error
	JSON(io.Writer) error
	Write(dir string) (path string, err error)
}

// WriteFiles writes a result to dir as name.json and name.md, and returns their path without the suffix.
func WriteFiles(dir, name string, r Result) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	base := filepath.Join(dir, name)
	for suffix, format := range map[string]func(io.Writer) error{".json": r.JSON, ".md": r.Markdown} {
		var text bytes.Buffer
		if err := format(&text); err != nil {
			return "", err
		}
		if err := os.WriteFile(base+suffix, text.Bytes(), 0o644); err != nil {
			return "", err
		}
	}
	return base, nil
}
