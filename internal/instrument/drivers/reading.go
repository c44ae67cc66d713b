package drivers

// A Reading is the result of one run of a probe. Latency tools print a median and an average, others a single value.
type Reading struct {
	Value   float64
	Average float64 // 0: the tool prints none
}
