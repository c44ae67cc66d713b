// Package apps runs applications that can use RDMA or TCP, unmodified, in both ways in the same run. Each compares its
// data, and the device's counters prove what carried it.
//
//	place ── one host, or two hosts: network namespaces with a daemon each
//	  │
//	  ├── compare ──► TCP, RDMA, TCP, RDMA … ──► a Row
//	  └── Row ──► the file in VRDMA_PROGRAMS ──► docs/reference/programs.md
//
// make programs writes the file and the page. Without VRDMA_PROGRAMS a test checks data and counters, and measures one round.
package apps

import (
	"slices"
	"strings"
)

// Results is the file with the rows of the page, below the repository's root.
const Results = "docs/report/programs.ndjson"

// A Row is a program in both modes, in one place.
type Row struct {
	Program string // with its version
	Started string // how
	Place   string // one host, two hosts
	What    string // what is measured
	Unit    string
	Lower   bool // the smaller value is the faster
	Checked string

	RDMA, TCP      []float64 // values of the rounds
	Packets, Bytes uint64    // that devices sent in the rounds of RDMA
	Processors     int
	Kernel         string
	Load           string // average of the last minute at the end: the processes that ran or wanted to
	Build          string // of vrdma
}

// Key orders rows, and names what a newer row replaces.
func (r Row) Key() string { return strings.Join([]string{r.Program, r.Place, r.What}, "\x00") }

// Ratio is how many times faster RDMA is than TCP.
func (r Row) Ratio() float64 {
	if r.Lower {
		return median(r.TCP) / median(r.RDMA)
	}
	return median(r.RDMA) / median(r.TCP)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// Median is the median of a row's values in one mode.
func (r Row) Median(values []float64) float64 { return median(values) }
