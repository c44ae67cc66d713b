package show

import (
	"fmt"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/printable"
)

// Plain returns a text on one line, without characters that could deceive its reader (package printable).
func Plain(s string) string { return printable.Text(strings.ReplaceAll(s, "\n", " ")) }

func age(now, since time.Time) time.Duration {
	return now.Sub(since).Round(time.Second)
}

// bytesText formats n in the largest binary unit in which it is at least 1.
func bytesText(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	value, i := float64(n), 0
	for value >= 1024 && i < len(units)-1 {
		value, i = value/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[i])
}
