package published

import (
	"math"
	"slices"
	"testing"
)

func TestAll(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 6638 {
		t.Errorf("%d values, want 6638", len(all))
	}
	// The thesis' table: SoftRoCE sends 64 bytes in 24.9 µs, and 64 KiB at 964 MiB/s.
	want := map[string]float64{"T-SR-LAT ib_send_lat 64 lat_typical": 24.9e-6, "T-SR-BW ib_send_bw 65536 bw_avg": 964 * (1 << 20)}
	found := 0
	for _, v := range all {
		if math.IsNaN(v.Value) || v.Experiment == "" || v.Metric == "" || v.Source == "" {
			t.Fatalf("not whole: %+v", v)
		}
		if v.System != "softroce" {
			continue
		}
		switch {
		case v.Experiment == "T-SR-LAT" && v.Size == 64 && v.Metric == "lat_typical" && v.Tool == "ib_send_lat -d rxe0 -a":
			found++
			if math.Abs(v.Value/want["T-SR-LAT ib_send_lat 64 lat_typical"]-1) > 0.01 {
				t.Errorf("latency %v", v.Value)
			}
		case v.Experiment == "T-SR-BW" && v.Size == 65536 && v.Metric == "bw_avg" && v.Tool == "ib_send_bw -d rxe0 -a":
			found++
			if math.Abs(v.Value/want["T-SR-BW ib_send_bw 65536 bw_avg"]-1) > 0.01 {
				t.Errorf("bandwidth %v", v.Value)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d of the two values were found", found)
	}
}

// Ten values, drawn at random from the extraction of the sources, stand in the table with the same source, tool, size, number and unit.
func TestSample(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []Value{
		{Experiment: "T-SR-CPU", System: "softroce", Tool: "ib_write_bw -d rxe0 -s SIZE -D 10 --run_infinitely", Size: 256, Pairs: 1, Metric: "cpu_client", Value: 143.4 * 0.01, Source: "thesis:data/raw/softroce_cpu_tests/write_cpu_client_rxe.txt"},
		{Experiment: "P-QPERF-CONT", System: "docker-hca", Tool: "qperf rc_bi_bw", Size: 65536, Pairs: 1, Metric: "bw_run02", Value: 6.41e9, Source: "seed 003 Table 9"},
		{Experiment: "T-SH-LAT", System: "shared-hca", Tool: "ib_write_lat -d mlx5_0 -x 5 -a", Size: 2, Pairs: 1, Metric: "lat_avg", Value: 1.83e-6, Source: "thesis:data/raw/shared_hca_basic_tests/ib_write_lat_shared.txt"},
		{Experiment: "T-SH-MULTI", System: "shared-hca", Tool: "ib_send_bw -d mlx5_0 -x GID -s 65536 -D 5 --run_infinitely", Size: 65536, Pairs: 2, Metric: "cpu_client", Value: 207.4 * 0.01, Source: "thesis:data/raw/shared_hca_multi_dev/send_cpu_client.txt"},
		{Experiment: "T-AS-BW", System: "bare-metal", Tool: "ib_send_bw -d mlx5_2 -a", Size: 128, Pairs: 1, Metric: "bw_avg", Value: 332.99 * (1 << 20), Source: "thesis:data/raw/asap2_direct_basic_tests/ib_send_bw_host.txt"},
		{Experiment: "T-SV-MULTI", System: "sriov", Tool: "ib_read_bw -d VF -s 65536 -D 5 --run_infinitely", Size: 65536, Pairs: 2, Metric: "bw_aggregate", Value: 11035.7 * (1 << 20), Source: "thesis:data/raw/sriov_multi_dev/ib_read_bw.txt"},
		{Experiment: "T-FF-MULTI", System: "freeflow-fastpath", Tool: "ib_read_bw -d mlx4_0 -s 65536 -D 5 --run_infinitely", Size: 65536, Pairs: 20, Metric: "cpu_server", Value: 1.03, Source: "thesis:data/raw/freeflow_multi_dev/read_cpu_server.txt"},
		{Experiment: "T-FF-LAT", System: "bare-metal", Tool: "ib_write_lat -d mlx4_0 -a", Size: 16384, Pairs: 1, Metric: "lat_stdev", Value: 0.13e-6, Source: "thesis:data/raw/freeflow_basic_tests/ib_write_lat_host.txt"},
		{Experiment: "T-SH-LAT", System: "bare-metal", Tool: "ib_send_lat -d mlx5_0 -a", Size: 4096, Pairs: 1, Metric: "lat_typical", Value: 3.46e-6, Source: "thesis:data/raw/shared_hca_basic_tests/ib_send_lat_host.txt"},
		{Experiment: "T-AS-LAT", System: "asap2", Tool: "ib_send_lat -a", Size: 2, Pairs: 1, Metric: "lat_typical", Value: 2.25e-6, Source: "thesis:data/raw/asap2_direct_basic_tests/ib_send_lat_sriov_ovs.txt"},
	} {
		same := func(v Value) bool {
			return v.Experiment == want.Experiment && v.System == want.System && v.Tool == want.Tool && v.Size == want.Size && v.Pairs == want.Pairs &&
				v.Metric == want.Metric && v.Source == want.Source && math.Abs(v.Value/want.Value-1) < 1e-9
		}
		if !slices.ContainsFunc(all, same) {
			t.Errorf("the table has no %+v", want)
		}
	}
}
