package drivers

// A Reading is what one run of a probe gave. Latency tools give a median and an
// average; others have only a value.
type Reading struct {
	Value   float64
	Average float64 // 0: the tool gives none
}
