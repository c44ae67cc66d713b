// Package published holds 6638 values that five publications about RDMA in containers and virtual
// machines give, so that what is measured here can be drawn beside them.
//
// published.csv.gz was read from the publications' raw data where they have any, else from their
// tables, plots (approx is yes: 3 to 5 percent) and prose. Its columns:
//
//	seed        which publication: 000 thesis, 001 slides, 002 lab, 003 progress report, 004 MIKELANGELO D4.1
//	experiment  its figure or table: T-SR-LAT is the thesis' latency of SoftRoCE
//	system      what was measured: softroce, bare-metal, sr-iov, freeflow, …
//	setting     hardware, path MTU, where the program ran
//	metric      lat_typical, lat_p99 (µs), bw_avg (MiB/s), msg_rate, cpu_client (% of a core), …
//	source      where in the publication
//
// Called by internal/report.
package published

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

//go:embed published.csv.gz
var packed []byte

// A Value is one that was published.
type Value struct {
	Experiment, System, Setting, Transport, Tool string
	Size                                         int64 // 0: none was stated
	Pairs                                        int
	Metric                                       string
	Value                                        float64 // in seconds, bytes a second, a second, processors
	Approximate                                  bool
	Source                                       string
}

// All are all of them.
var All = sync.OnceValues(func() ([]Value, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return parse(z)
})

// columns are the names of the first line.
const columns = "seed,experiment,system,setting,transport,tool,size_bytes,pairs,metric,value,unit,approx,source"

// units are what a value is multiplied with.
var units = map[string]float64{
	"us": 1e-6, "s": 1, "MiB/s": 1 << 20, "Gb/s": 1e9 / 8, "GB/s": 1e9, "Mmsg/s": 1e6, "%core": 0.01, "%": 0.01, "% (as plotted)": 0.01, "cores": 1, "images/s": 1,
}

func parse(from io.Reader) (list []Value, err error) {
	r := csv.NewReader(from)
	first, err := r.Read()
	if err != nil {
		return nil, err
	}
	if strings.Join(first, ",") != columns {
		return nil, fmt.Errorf("the columns are %v, want %s", first, columns)
	}
	for {
		row, err := r.Read()
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		v := Value{Experiment: row[1], System: row[2], Setting: row[3], Transport: row[4], Tool: row[5], Metric: row[8], Approximate: row[11] == "yes", Source: row[12]}
		v.Size, _ = strconv.ParseInt(row[6], 10, 64) // often none is stated
		v.Pairs, _ = strconv.Atoi(row[7])
		number, err := strconv.ParseFloat(row[9], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is no number", v.Experiment, row[9])
		}
		unit, known := units[row[10]]
		if !known {
			return nil, fmt.Errorf("%s: unit %q is not known", v.Experiment, row[10])
		}
		v.Value = number * unit
		list = append(list, v)
	}
}
