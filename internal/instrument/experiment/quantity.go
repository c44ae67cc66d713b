package experiment

import (
	"fmt"
	"math"
	"strconv"
)

// Quantity is a value with a unit that fits it.
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

// digits is a number with three of them, or all of a larger one, as people write it.
func digits(v float64) string {
	if math.Abs(v) >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	n, err := strconv.ParseFloat(fmt.Sprintf("%.3g", v), 64)
	if err != nil {
		panic(err) // we wrote it
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}
