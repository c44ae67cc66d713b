package experiment

import (
	"math"
	"slices"
)

// A Summary is the result of all rounds of a cell.
//
// Low and High are an interval for the median that assumes nothing about the distribution: two of the sorted values,
// equally far from both ends. Coverage is the probability that such an interval contains the median of all possible
// rounds. It is at least 0.95 from six rounds on. With fewer rounds the interval is the whole range, and Coverage says how little that
// proves: 0.94 for five, 0.75 for three, 0 for one.
type Summary struct {
	N         int     `json:"n"`
	Median    float64 `json:"median"`
	Low, High float64
	Coverage  float64
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

// coverage is the coverage that an interval has if there are enough rounds.
const coverage = 0.95

// Summarize returns the median with its interval.
func Summarize(values []float64) Summary {
	n := len(values)
	s := Summary{N: n, Median: Median(values)}
	if n == 0 {
		return s
	}
	sorted := slices.Sorted(slices.Values(values))
	cut, covered := orderStatistics(n)
	s.Low, s.High, s.Coverage = sorted[cut], sorted[n-1-cut], covered
	return s
}

// orderStatistics returns how many of n sorted values the interval leaves out at each end, and its coverage. The median of the
// distribution is below the value at index i with the probability that at most i of n coin tosses are heads.
func orderStatistics(n int) (cut int, covered float64) {
	outside := math.Pow(0.5, float64(n)) // the probability that the median is below the value at index cut
	covered = 1 - 2*outside
	term := outside
	for i := 1; i < (n+1)/2; i++ {
		term *= float64(n-i+1) / float64(i)
		if outside += term; 1-2*outside < coverage {
			break
		}
		cut, covered = i, 1-2*outside
	}
	return cut, covered
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
