package workload

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Rows returns the lines of results that a tool of perftest prints: size, iterations, then
// figures. perftest writes noClock to its standard error, and so into the middle of a row.
func Rows(out string) [][]string {
	var rows [][]string
	for line := range strings.Lines(noClockLine.ReplaceAllString(out, "")) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		if _, err := strconv.ParseUint(f[0], 10, 64); err != nil {
			continue
		}
		if _, err := strconv.ParseUint(f[1], 10, 64); err != nil {
			continue
		}
		rows = append(rows, f)
	}
	return rows
}

// noClock is perftest's message when it could not measure the frequency of the time stamp counter. It compares the
// counter with the time of day two hundred times for each row. If it waited for a processor in between, the two do not
// fit. Then it continues with a frequency of 0: every bandwidth of that row is 0, and every latency infinite.
const noClock = "Correlation coefficient r^2:"

var noClockLine = regexp.MustCompile(regexp.QuoteMeta(noClock) + ` [^\n]*\n?`)

// CheckRows checks perftest's results: the wanted number of rows, or any number if rows is negative. In each row every
// figure is a number, and not all are 0. Rows that perftest says it could not measure may be 0. It says so only on the
// side that measured, and the peer gets only the figures: peer is that side's output.
func CheckRows(out, peer string, rows int) error {
	got := Rows(out)
	if rows >= 0 && len(got) != rows {
		return fmt.Errorf("%d rows of results, want %d", len(got), rows)
	}
	unmeasured := 0
	for _, r := range got {
		measured := false
		for _, text := range r[2:] {
			v, err := strconv.ParseFloat(strings.TrimPrefix(text, "-"), 64) // its rounding makes a standard deviation -nan
			if err != nil {
				return fmt.Errorf("result %q in row %v, want a number", text, r)
			}
			measured = measured || v > 0 && !math.IsInf(v, 0)
		}
		if !measured {
			unmeasured++
		}
	}
	if said := strings.Count(out, noClock) + strings.Count(peer, noClock); unmeasured > said {
		return fmt.Errorf("%d rows without a figure, and perftest says of %d that it could not measure them", unmeasured, said)
	}
	return nil
}
