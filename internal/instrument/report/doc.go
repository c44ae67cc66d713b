// Package report makes pages of results: report.html, report.md and results.csv.
//
//	experiment.Results ──▶ Gather ──▶ figures (series of points with intervals), tables, sentences
//	published.All ────────────┘            │
//	                                       ├──▶ HTML: one file (page.tmpl), drawn as SVG, no network, no library
//	                                       ├──▶ Markdown
//	                                       └──▶ CSV
//
// Every number on a page comes from a record. What could not be measured is there with its reason.
// A ratio is only made of cells of one run that differ in nothing but the transport.
//
// Called by cmd/vrdma.
package report
