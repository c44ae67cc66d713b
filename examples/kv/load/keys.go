package load

import (
	"math"
	"math/rand/v2"
)

// Keys picks keys.
type Keys interface {
	// Next returns a key, from 0. Any goroutine may call it with a source of its own.
	Next(*rand.Rand) uint64
}

// Uniform picks each of this many keys with the same probability.
type Uniform uint64

// Next implements Keys.
func (n Uniform) Next(r *rand.Rand) uint64 { return r.Uint64N(uint64(n)) }

// theta is the exponent of YCSB's zipfian keys.
const theta = 0.99

// Zipfian picks some keys much more often than others. It uses the method of Gray et al., "Quickly generating billion-record synthetic
// databases" (SIGMOD 1994), as YCSB does: math/rand's Zipf needs an exponent above 1.
type Zipfian struct {
	n                 uint64
	zeta, alpha, eta  float64
	second, firstPart float64
}

// NewZipfian returns a Zipfian of n keys.
func NewZipfian(n uint64) *Zipfian {
	z := &Zipfian{n: n, alpha: 1 / (1 - theta)}
	for k := range n {
		z.zeta += 1 / math.Pow(float64(k+1), theta)
	}
	z.firstPart = 1
	z.second = 1 + math.Pow(0.5, theta)
	z.eta = (1 - math.Pow(2/float64(n), 1-theta)) / (1 - z.second/z.zeta)
	return z
}

// rank returns the popularity of the next key: 0 is the most popular.
func (z *Zipfian) rank(r *rand.Rand) uint64 {
	u := r.Float64()
	switch uz := u * z.zeta; {
	case uz < z.firstPart:
		return 0
	case uz < z.second && z.n > 1:
		return 1
	}
	return min(uint64(float64(z.n)*math.Pow(z.eta*u-z.eta+1, z.alpha)), z.n-1)
}

// Next implements Keys. Popular keys are scattered over the table.
func (z *Zipfian) Next(r *rand.Rand) uint64 {
	rank := z.rank(r)
	return rank * scatter(z.n) % z.n
}

// scatter returns a number that is coprime to n, so that multiplying by it permutes the keys.
func scatter(n uint64) uint64 {
	for s := uint64(2654435761) % n; ; s++ {
		if gcd(s, n) == 1 {
			return s
		}
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
