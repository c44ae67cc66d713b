// Package speedtable holds the results of the speed table as data: series of numbers, rows that compare two medians with a bound,
// reports, and the comparison of two builds. It measures nothing.
//
//	Series (all numbers of a probe) ─► Row (a median, or a ratio of medians, against a bound) ─► Report ─► JSON, Markdown
//	Row of this build, of the control and of another build ─► ComparedRow with a Verdict      ─► Compared ─► JSON, Markdown
//
// Package bench fills reports, package attack has reports of its own with the same series. Programs read the JSON: test/docs writes
// the table of docs/explanation/performance.md from it.
package speedtable
