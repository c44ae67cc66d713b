package experiment

import (
	"fmt"
	"math"
)

// Amount formats a number with a unit that fits it.
func Amount(v float64, unit string) string {
	switch unit {
	case "s":
		switch {
		case math.Abs(v) < 1e-3:
			return fmt.Sprintf("%.2f us", v*1e6)
		case math.Abs(v) < 1: // a difference may be negative
			return fmt.Sprintf("%.2f ms", v*1e3)
		}
		return fmt.Sprintf("%.2f s", v)
	case "B/s":
		return scaled(v, 1000, []string{"B/s", "kB/s", "MB/s", "GB/s", "TB/s"})
	case "/s":
		return scaled(v, 1000, []string{"/s", "k/s", "M/s", "G/s"})
	case "B":
		return scaled(v, 1024, []string{"B", "KiB", "MiB", "GiB"})
	case "%":
		return fmt.Sprintf("%.2f %%", v)
	}
	return fmt.Sprintf("%.4g %s", v, unit)
}

// scaled uses the largest unit in which v is at least 1.
func scaled(v, step float64, units []string) string {
	i := 0
	for v >= step && i < len(units)-1 {
		v, i = v/step, i+1
	}
	return fmt.Sprintf("%.2f %s", v, units[i])
}
