package drivers

import (
	"maps"
	"strings"
	"testing"
)

func TestParseQperf(t *testing.T) {
	tests := []struct {
		name, output string
		want         map[string]float64
		fails        string
	}{
		{"latency", "tcp_lat:\n    latency   =  25000 ns\n    msg_rate  =  37290 /sec\n", map[string]float64{"latency": 25000 * 1e-9, "msg_rate": 37290}, ""},
		{"bandwidth", "tcp_bw:\n    bw        =  9136368 bytes/sec\n    msg_rate  =  1,142,046 /sec\n", map[string]float64{"bw": 9136368, "msg_rate": 1142046}, ""},
		{"failure", "127.0.0.1: failed to connect: Connection refused\n", nil, "Connection refused"},
		{"units for people", "tcp_bw:\n    bw  =  1.72 GB/sec\n", nil, "no known unit"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseQperf(test.output)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("got %v, want an error with %q", err, test.fails)
				}
				return
			}
			if err != nil || !maps.Equal(got, test.want) {
				t.Errorf("got %v, %v, want %v", got, err, test.want)
			}
		})
	}
}
