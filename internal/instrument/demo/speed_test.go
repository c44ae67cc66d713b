package demo

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/speedtable"
)

func TestDemoTable(t *testing.T) {
	series := []speedtable.Series{
		{Name: "ib_write_lat -s 64", Unit: "s", Values: []float64{5e-6, 4e-6, 90e-6}},
		{Name: "qperf -m 64 tcp_lat", Unit: "s", Values: []float64{10e-6}},
		{Name: "ib_write_bw -s 65536", Unit: "B/s", Values: []float64{1e9}},
		{Name: "qperf -m 65536 tcp_bw", Unit: "B/s", Values: []float64{2e9}},
	}
	var out strings.Builder
	d := Speed{Out: &out, Rounds: 3}
	if err := d.table("TCP on loopback", series, []comparison{{"latency", 0, 1, true}, {"bandwidth", 2, 3, false}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"latency    5.00 us             10.00 us         2.0 x faster  ib_write_lat, qperf tcp_lat",
		"bandwidth  1.00 GB/s           2.00 GB/s        2.0 x less    ib_write_bw, qperf tcp_bw",
		"The rounds of ib_write_lat -s 64 differ by a factor of 22.5.\nOther programs use",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant a line\n%s", out.String(), want)
		}
	}
	if strings.Contains(out.String(), "rounds of qperf") {
		t.Errorf("got\n%s\nbut the rounds of qperf agree", out.String())
	}
	series[1] = speedtable.Series{Name: "qperf -m 64 tcp_lat", Unit: "s", Failures: []string{"no such program", "no such program"}}
	if err := d.table("TCP", series, []comparison{{"latency", 0, 1, true}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"failed  not measured  ib_write_lat, qperf tcp_lat", "\nfailed: no such program\n"} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("got\n%s\nwant once\n%s", out.String(), want)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("colours, although not on a terminal")
	}
}
