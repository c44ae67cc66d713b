// Package report makes pages of results: report.html, report.md and results.csv.
//
//	experiment.Results ──▶ Gather ──▶ figures (series of points with intervals), tables, sentences
//	published.All ────────────┘            │
//	                                       ├──▶ HTML: one file, drawn as SVG, no network, no library
//	                                       ├──▶ Markdown
//	                                       └──▶ CSV
//
// Every number on a page comes from a record. What could not be measured is there with its reason.
// A ratio is only made of cells of one run that differ in nothing but the transport.
//
// HTML is written by hand: html/template calls methods by their names, and a linker that sees that
// keeps every method of every type in the binary.
//
// Called by cmd/vrdma.
package report
