package experiment

import (
	"math"
	"math/rand/v2"
	"slices"
)

// A Summary is the result of all rounds of a cell.
type Summary struct {
	N         int     `json:"n"`
	Median    float64 `json:"median"`
	Low, High float64 // 95 % interval of the median, by bootstrap
}

// Median returns the median of values; NaN without values.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(n-1)/2] + s[n/2]) / 2
}

// resamples is the number of bootstrap samples.
const resamples = 1000

// Summarize returns the median with its interval. Equal values give equal intervals.
func Summarize(values []float64) Summary {
	s := Summary{N: len(values), Median: Median(values)}
	if len(values) == 0 {
		return s
	}
	rnd := rand.New(rand.NewPCG(1, uint64(len(values))))
	medians := make([]float64, resamples)
	drawn := make([]float64, len(values))
	for i := range medians {
		for j := range drawn {
			drawn[j] = values[rnd.IntN(len(values))]
		}
		medians[i] = Median(drawn)
	}
	slices.Sort(medians)
	s.Low, s.High = medians[resamples*25/1000], medians[resamples*975/1000-1]
	return s
}

// Different returns the probability of two sets of values that differ at least as much, if there is no difference: the Mann-Whitney U
// test. It is exact for few values without ties, else the normal approximation.
func Different(a, b []float64) float64 {
	if len(a) == 0 || len(b) == 0 {
		return 1
	}
	u, ties := rankSum(a, b)
	n, m := len(a), len(b)
	if !ties && n*m <= 400 {
		return exact(n, m, u)
	}
	mean := float64(n*m) / 2
	dev := math.Sqrt(float64(n*m) * float64(n+m+1) / 12)
	if dev == 0 {
		return 1
	}
	z := (math.Abs(u-mean) - 0.5) / dev
	return min(1, math.Erfc(max(z, 0)/math.Sqrt2))
}

// rankSum returns U of a, and whether some values are equal.
func rankSum(a, b []float64) (u float64, ties bool) {
	for _, x := range a {
		for _, y := range b {
			switch {
			case x > y:
				u++
			case x == y:
				u += 0.5
				ties = true
			}
		}
	}
	return u, ties
}

// exact counts the orders of n and m values with each U.
func exact(n, m int, u float64) float64 {
	// ways[i][j] are the counts of U for i of a and j of b.
	ways := make([][][]float64, n+1)
	for i := range ways {
		ways[i] = make([][]float64, m+1)
		for j := range ways[i] {
			ways[i][j] = make([]float64, i*j+1)
			if i == 0 || j == 0 {
				ways[i][j][0] = 1
				continue
			}
			for k, w := range ways[i-1][j] { // the largest is of a: it is above all j
				ways[i][j][k+j] += w
			}
			for k, w := range ways[i][j-1] {
				ways[i][j][k] += w
			}
		}
	}
	counts := ways[n][m]
	all, tail := 0.0, 0.0
	low := min(u, float64(n*m)-u)
	for k, w := range counts {
		all += w
		if float64(k) <= low || float64(k) >= float64(n*m)-low {
			tail += w
		}
	}
	return min(1, tail/all)
}

// Jain returns Jain's fairness index of shares: 1 if they are equal, 1/n if one has all.
func Jain(shares []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, s := range shares {
		sum += s
		squares += s * s
	}
	if squares == 0 {
		return math.NaN()
	}
	return sum * sum / (float64(len(shares)) * squares)
}
