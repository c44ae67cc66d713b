package drivers

import (
	"strings"
	"testing"
)

const latencyOutput = `---------------------------------------------------------------------------------------
                    RDMA_Write Latency Test
 Dual-port       : OFF		Device         : rxe0
 Max inline data : 0[B]
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0011 PSN 0x1688ae RKey 0x00022e VAddr 0x00558ad69a7000
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
Conflicting CPU frequency values detected: 2900.000000 != 2299.998000. CPU Frequency is not max.
 2       1000          3.76        10217.16      5.38  	       5.95     	2359.00		9.16 		77.16
---------------------------------------------------------------------------------------
`

const bandwidthOutput = `---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 4096       5000             1024.00               512.00   		   0.131072
---------------------------------------------------------------------------------------
`

func TestParseLatency(t *testing.T) {
	got, err := ParseLatency(latencyOutput)
	want := Latency{Bytes: 2, Iterations: 1000, Min: 3.76, Max: 10217.16, Typical: 5.38, Average: 5.95, Deviation: 2359, P99: 9.16, P999: 77.16}
	if err != nil || got != want {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

// perftest 4.5 on a busy machine: the deviation overflows.
func TestParseLatencyWithoutDeviation(t *testing.T) {
	got, err := ParseLatency(strings.Replace(latencyOutput, "2359.00", "-nan", 1))
	if err != nil || got.Typical != 5.38 || got.P999 != 77.16 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseBandwidth(t *testing.T) {
	want := Bandwidth{Bytes: 4096, Iterations: 5000, Peak: 1 << 30, Average: 512 << 20, MessageRate: 131072}
	for _, output := range []string{bandwidthOutput, strings.ReplaceAll(bandwidthOutput, "MB/sec", "MiB/sec")} { // newer ones print the second
		if got, err := ParseBandwidth(output); err != nil || got != want {
			t.Errorf("got %+v, %v\nwant %+v", got, err, want)
		}
	}
}

func TestParsePerftestFailures(t *testing.T) {
	tests := []struct{ name, output, want string }{
		{"nothing", "", "no column"},
		{"another tool", latencyOutput, "no column"},
		{"it gave up", " Couldn't connect to 127.0.0.1:18515\n", "Couldn't connect"},
		{"header only", strings.Split(bandwidthOutput, " 4096")[0], "no result"},
		{"not numbers", strings.ReplaceAll(bandwidthOutput, "512.00", "nonsense"), "no result"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got, err := ParseBandwidth(test.output); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %+v, %v, want an error with %q", got, err, test.want)
			}
		})
	}
}
