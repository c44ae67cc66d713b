package experiment

import (
	"fmt"
	"math"
	"strconv"
)

// Quantity formats the value of a metric with a unit that fits it.
func Quantity(v float64, metric string) string {
	switch metric {
	case Latency, "p99", "p999":
		if v < 1e-3 {
			return digits(v*1e6) + " µs"
		}
		return digits(v*1e3) + " ms"
	case Time:
		if v < 1 {
			return digits(v*1e3) + " ms"
		}
		return digits(v) + " s"
	case CPU:
		return digits(100*v) + " %"
	case Bandwidth:
		switch {
		case v == 0 || v*8 >= 1e9:
			return digits(v*8/1e9) + " Gb/s"
		case v*8 >= 1e6:
			return digits(v*8/1e6) + " Mb/s"
		}
		return digits(v*8/1e3) + " kb/s"
	case Rate:
		if v < 1e6 {
			return digits(v/1e3) + " k/s"
		}
		return digits(v/1e6) + " M/s"
	}
	return digits(v)
}

// digits formats a number with three significant digits, or with all of an integer part that is longer.
func digits(v float64) string {
	if math.Abs(v) >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	n, err := strconv.ParseFloat(fmt.Sprintf("%.3g", v), 64)
	if err != nil {
		panic(err) // Sprintf wrote it
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}
