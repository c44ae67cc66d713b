// Package published holds 6638 values of five publications about RDMA in containers and virtual machines. The report draws them
// beside measured values.
//
// published.tsv.gz was made from the publications' raw data where it exists, else from their tables, plots (approx is yes: 3 to
// 5 percent) and text. The table is transposed, which halves its compressed size: each line is a column, with the name first
// and tabs between. The columns:
//
//	seed        which publication: 000 thesis, 001 slides, 002 lab, 003 progress report, 004 MIKELANGELO D4.1
//	experiment  its figure or table: T-SR-LAT is the thesis' latency of SoftRoCE
//	system      what was measured: softroce, bare-metal, sr-iov, freeflow, …
//	setting     hardware, path MTU, where the program ran
//	metric      lat_typical, lat_p99 (µs), bw_avg (MiB/s), msg_rate, cpu_client (% of a core), …
//	source      where in the publication
//
// Package report calls it.
package published

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

//go:embed published.tsv.gz
var packed []byte

// A Value is a published value.
type Value struct {
	Experiment, System, Setting, Transport, Tool string
	Size                                         int64 // 0: not stated
	Pairs                                        int
	Metric                                       string
	Value                                        float64 // in seconds, bytes/s, 1/s or processors
	Approximate                                  bool
	Source                                       string
}

// All returns all values.
var All = sync.OnceValues(func() ([]Value, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return parse(z)
})

// columns are the names of the columns.
const columns = "seed,experiment,system,setting,transport,tool,size_bytes,pairs,metric,value,unit,approx,source"

// units are the factors that convert published units.
var units = map[string]float64{
	"us": 1e-6, "s": 1, "MiB/s": 1 << 20, "Gb/s": 1e9 / 8, "GB/s": 1e9, "Mmsg/s": 1e6, "%core": 0.01, "%": 0.01, "% (as plotted)": 0.01, "cores": 1, "images/s": 1,
}

func parse(from io.Reader) (list []Value, err error) {
	text, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	var names []string
	var table [][]string
	for line := range strings.SplitSeq(string(text), "\n") {
		words := strings.Split(line, "\t")
		names, table = append(names, words[0]), append(table, words[1:])
		if len(words) != len(table[0])+1 {
			return nil, fmt.Errorf("column %s has %d values, want %d", words[0], len(words)-1, len(table[0]))
		}
	}
	if strings.Join(names, ",") != columns {
		return nil, fmt.Errorf("the columns are %v, want %s", names, columns)
	}
	for i := range table[0] {
		v := Value{
			Experiment: table[1][i], System: table[2][i], Setting: table[3][i], Transport: table[4][i], Tool: table[5][i],
			Metric: table[8][i], Approximate: table[11][i] == "yes", Source: table[12][i],
		}
		v.Size, _ = strconv.ParseInt(table[6][i], 10, 64) // often not stated
		v.Pairs, _ = strconv.Atoi(table[7][i])
		number, err := strconv.ParseFloat(table[9][i], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is no number", v.Experiment, table[9][i])
		}
		unit, known := units[table[10][i]]
		if !known {
			return nil, fmt.Errorf("%s: unit %q is not known", v.Experiment, table[10][i])
		}
		v.Value = number * unit
		list = append(list, v)
	}
	return list, nil
}
