package published

import (
	"math"
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
