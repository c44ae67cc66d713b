package tenant

import (
	"bytes"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Bytes is an amount of memory or data; a file says 4096, 64Ki, 4Gi, 10M.
type Bytes uint64

// BitRate is bits a second; a file says 1Gbit, 500Mbit, 10Gbit.
type BitRate uint64

// A unit is a suffix and how many it stands for.
type unit struct {
	suffix string
	size   uint64
}

// Units from large to small, so that the first that divides a value makes the shortest text.
var (
	byteUnits = []unit{
		{"Ei", 1 << 60}, {"Pi", 1 << 50}, {"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10},
		{"E", 1e18}, {"P", 1e15}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}, {"", 1},
	}
	bitUnits = []unit{{"Tbit", 1e12}, {"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}
)

func (b Bytes) String() string   { return quantityText(uint64(b), byteUnits) }
func (r BitRate) String() string { return quantityText(uint64(r), bitUnits) }

func (b Bytes) MarshalText() ([]byte, error)   { return []byte(b.String()), nil }
func (r BitRate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads 4096, 64Ki, 1.5Gi, 10M.
func (b *Bytes) UnmarshalText(text []byte) error {
	n, err := parseQuantity(string(text), byteUnits)
	if err != nil {
		return fmt.Errorf("%q is not an amount of bytes%w: write it like 4096, 64Ki, 4Gi or 10M", text, err)
	}
	*b = Bytes(n)
	return nil
}

// UnmarshalJSON reads the same as a string, and a bare number.
func (b *Bytes) UnmarshalJSON(text []byte) error { return b.UnmarshalText(bytes.Trim(text, `"`)) }

// UnmarshalText reads 10Gbit, 2.5Gbit, 500Mbit, 64kbit. The unit has to be there, because a bare
// number could be meant as bytes.
func (r *BitRate) UnmarshalText(text []byte) error {
	n, err := parseQuantity(string(text), bitUnits)
	if err != nil {
		return fmt.Errorf("%q is not a rate%w: write bits a second like 10Gbit, 500Mbit or 64kbit", text, err)
	}
	*r = BitRate(n)
	return nil
}

// quantityText is exact: the largest unit that divides n.
func quantityText(n uint64, units []unit) string {
	for _, u := range units {
		if n != 0 && n%u.size == 0 {
			return strconv.FormatUint(n/u.size, 10) + u.suffix
		}
	}
	return "0" + units[len(units)-1].suffix
}

// parseQuantity reads a decimal number and a unit. The result is whole and fits an int64. The
// error continues the sentence "… is not a quantity".
func parseQuantity(text string, units []unit) (uint64, error) {
	digits := strings.TrimRight(text, "BEGKMPTbgikmpt") // all letters of units, and some of mistakes
	size := uint64(0)
	for _, u := range units {
		if text[len(digits):] == u.suffix {
			size = u.size
		}
	}
	if size == 0 {
		return 0, unknownUnit(text[len(digits):])
	}
	whole, fraction, _ := strings.Cut(digits, ".")
	if whole == "" || strings.Trim(whole+fraction, "0123456789") != "" || strings.HasSuffix(digits, ".") {
		return 0, noReason
	}
	n, err := strconv.ParseUint(whole+fraction, 10, 64)
	if err != nil {
		return 0, reason(" (too large)")
	}
	high, n := bits.Mul64(n, size)
	divisor := uint64(1)
	for range min(len(fraction), 20) {
		divisor *= 10
	}
	switch {
	case len(fraction) > 18 || high >= divisor:
		return 0, reason(" (too large)")
	case len(fraction) > 0:
		var rest uint64
		if n, rest = bits.Div64(high, n, divisor); rest != 0 {
			return 0, reason(" (not a whole number)")
		}
	}
	if n > math.MaxInt64 {
		return 0, reason(" (too large)")
	}
	return n, nil
}

// A reason is a part of an error's text, and may be empty.
type reason string

func (r reason) Error() string { return string(r) }

const noReason = reason("")

func unknownUnit(suffix string) reason {
	if suffix == "" {
		return " (it has no unit)"
	}
	return reason(fmt.Sprintf(" (no unit is called %s)", suffix))
}
