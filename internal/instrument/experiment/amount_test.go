package experiment

import "testing"

func TestQuantity(t *testing.T) {
	tests := []struct {
		v          float64
		unit, want string
	}{
		{12.3e-6, "s", "12.30 us"}, {0.25, "s", "250.00 ms"}, {2, "s", "2.00 s"},
		{1.5e9, "B/s", "1.50 GB/s"}, {1.5e6, "/s", "1.50 M/s"}, {65536, "B", "64.00 KiB"}, {0.5, "%", "0.50 %"}, {0, "allocations", "0 allocations"},
	}
	for _, test := range tests {
		if got := Amount(test.v, test.unit); got != test.want {
			t.Errorf("Quantity(%v, %q) = %q, want %q", test.v, test.unit, got, test.want)
		}
	}
}
