package experiment

import "fmt"

// Quantity is a value with a unit that fits it.
func Quantity(v float64, metric string) string {
	switch metric {
	case Latency, "p99", "p999":
		if v < 1e-3 {
			return fmt.Sprintf("%.3g µs", v*1e6)
		}
		return fmt.Sprintf("%.3g ms", v*1e3)
	case Bandwidth:
		return fmt.Sprintf("%.3g Gb/s", v*8/1e9)
	case Rate:
		if v < 1e6 {
			return fmt.Sprintf("%.3g k/s", v/1e3)
		}
		return fmt.Sprintf("%.3g M/s", v/1e6)
	}
	return fmt.Sprintf("%.3g", v)
}
