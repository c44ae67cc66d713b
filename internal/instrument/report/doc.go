// Package report writes results for readers: report.html, report.md and results.csv.
//
//	experiment.Results ──▶ Gather ──▶ figures (series of points with intervals), tables, sentences
//	published.All ────────────┘            │
//	                                       ├──▶ HTML: one file (page.tmpl), drawn as SVG, no network, no library
//	                                       ├──▶ Markdown
//	                                       └──▶ CSV
//
// Every number on a page comes from a record. Cells that could not be measured appear with the reason. A ratio compares cells of
// one run that differ only in the transport.
//
// cmd/vrdma calls it.
package report
