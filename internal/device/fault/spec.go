package fault

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Rule is one action and what it hits. The zero value of a selector selects everything.
type Rule struct {
	Action Action

	// Selectors.
	Ops         Ops          // operations of packets; 0: all but acknowledgements
	Direction   Direction    // 0: out
	Peer        netip.Prefix // address of the peer
	QP          uint32       // number of the queue pair
	Packet      Range        // which of the packets that match, for each queue pair
	Message     Range        // which of the messages that match, for each queue pair
	Every       uint64       // only each n-th of what matches
	Probability Probability  // 0: always
	Count       uint64       // at most so many hits; 0: no limit
	From        time.Duration
	For         time.Duration // 0: for ever
	Seed        uint64

	// Parameters of the action.
	Time   time.Duration
	Jitter time.Duration
	Rate   BitRate
}

// A Range is numbers from First to Last, counted from 1; the zero Range has all numbers.
type Range struct{ First, Last uint64 }

// A Probability is in units of 2^-64; 0 stands for certainty.
type Probability uint64

// A BitRate is bits per second.
type BitRate uint64

// A Direction says whose packets a rule hits.
type Direction uint8

// Directions.
const (
	Out Direction = iota + 1 // that the NIC or program sends
	In                       // that it receives
	Both
)

var directionNames = []string{"", "out", "in", "both"}

func (d Direction) String() string { return directionNames[d] }

// A field is a key of SPEC.
type field struct {
	name   string
	value  string // for people
	help   string
	actors Traits // the actions that have the field; 0: all
	set    func(*Rule, string) error
	get    func(*Rule) string // empty: not set
}

// fields are the keys of SPEC, in the order in which Rule.String writes them.
var fields = []field{
	{"time", "DURATION", "how long to hold the packet, message or completion back", hasTime,
		func(r *Rule, v string) error { return setDuration(&r.Time, v) }, func(r *Rule) string { return durationText(r.Time) }},
	{"jitter", "DURATION", "adds a random time up to this to time; packets of a queue pair keep their order", hasJitter,
		func(r *Rule, v string) error { return setDuration(&r.Jitter, v) }, func(r *Rule) string { return durationText(r.Jitter) }},
	{"rate", "BITRATE", "bits per second: 10Mbit, 1Gbit", hasRate,
		func(r *Rule, v string) error { return r.Rate.set(v) }, func(r *Rule) string { return r.Rate.String() }},
	{"op", "OP[+OP...]", "operations: send, write, read, atomic, flush, read-response, ack, any; default: all but ack", isPacket,
		func(r *Rule, v string) error { return r.Ops.set(v) }, func(r *Rule) string { return r.Ops.String() }},
	{"direction", "out|in|both", "packets that the NIC or program sends, receives, or both; default: out", isPacket | isConnect,
		func(r *Rule, v string) error { return r.Direction.set(v) }, func(r *Rule) string { return r.Direction.String() }},
	{"peer", "ADDRESS[/LENGTH]", "address of the peer", isPacket | isConnect,
		func(r *Rule, v string) error { return setPrefix(&r.Peer, v) }, func(r *Rule) string { return prefixText(r.Peer) }},
	{"qp", "NUMBER", "number of the queue pair, as vrdma status shows it", isPacket | isCompletion,
		func(r *Rule, v string) error { return setQP(&r.QP, v) }, func(r *Rule) string { return numberText(uint64(r.QP)) }},
	{"packet", "N[-M]", "only the n-th packet that matches, or a range; counted for each queue pair, from 1", isPacket,
		func(r *Rule, v string) error { return r.Packet.set(v) }, func(r *Rule) string { return r.Packet.String() }},
	{"message", "N[-M]", "only the n-th message that matches, or a range; of calls and connections the n-th", 0,
		func(r *Rule, v string) error { return r.Message.set(v) }, func(r *Rule) string { return r.Message.String() }},
	{"every", "N", "only each n-th of what matches", 0,
		func(r *Rule, v string) error { return setCount(&r.Every, v) }, func(r *Rule) string { return numberText(r.Every) }},
	{"probability", "P", "chance of a hit: 1%, 0.01", 0,
		func(r *Rule, v string) error { return r.Probability.set(v) }, func(r *Rule) string { return r.Probability.String() }},
	{"count", "N", "at most n hits", 0,
		func(r *Rule, v string) error { return setCount(&r.Count, v) }, func(r *Rule) string { return numberText(r.Count) }},
	{"from", "DURATION", "begins so long after the fault was declared or the program started", 0,
		func(r *Rule, v string) error { return setDuration(&r.From, v) }, func(r *Rule) string { return durationText(r.From) }},
	{"for", "DURATION", "ends so long after it began; default: never", 0,
		func(r *Rule, v string) error { return setDuration(&r.For, v) }, func(r *Rule) string { return durationText(r.For) }},
	{"seed", "N", "another number gives other random choices; default: 0", 0,
		func(r *Rule, v string) error { return setSeed(&r.Seed, v) }, func(r *Rule) string { return numberText(r.Seed) }},
}

// Variable is the variable of the environment that has the rules of a program, separated by blanks.
const Variable = "VRDMA_FAULT"

// Parse reads a SPEC: the name of an action, then key=value, separated by commas.
func Parse(spec string) (Rule, error) {
	var r Rule
	name, rest, more := strings.Cut(spec, ",")
	a, ok := actionByName(name)
	if !ok {
		return r, fmt.Errorf("%q is not a fault: choose one of %s", name, strings.Join(ActionNames(), ", "))
	}
	r.Action = a
	seen := make(map[string]bool)
	for more {
		var part string
		part, rest, more = strings.Cut(rest, ",")
		key, value, has := strings.Cut(part, "=")
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == key })
		switch {
		case i < 0 || !has:
			return r, fmt.Errorf("%q is not a selector: write key=value, with a key of %s", part, strings.Join(fieldNames(a), ", "))
		case seen[key]:
			return r, fmt.Errorf("%s is there twice: delete one", key)
		case fields[i].actors != 0 && fields[i].actors&a.Traits() == 0:
			return r, fmt.Errorf("%s has no %s: its keys are %s", a, key, strings.Join(fieldNames(a), ", "))
		}
		seen[key] = true
		if err := fields[i].set(&r, value); err != nil {
			return r, fmt.Errorf("%s: %w", key, err)
		}
	}
	return r, r.check()
}

// check finds rules that cannot work.
func (r *Rule) check() error {
	t := r.Action.Traits()
	switch {
	case t&hasTime != 0 && t&isReorder == 0 && r.Time == 0 && r.Jitter == 0:
		return fmt.Errorf("%s needs a time: write %s,time=10ms", r.Action, r.Action)
	case t&hasRate != 0 && r.Rate == 0:
		return fmt.Errorf("%s needs a rate: write %s,rate=10Mbit", r.Action, r.Action)
	}
	return nil
}

// ParseAll reads several SPECs, separated by semicolons or white space.
func ParseAll(text string) (rules []Rule, err error) {
	for spec := range strings.FieldsFuncSeq(text, func(c rune) bool { return c == ';' || c == ' ' || c == '\n' || c == '\t' }) {
		r, err := Parse(spec)
		if err != nil {
			return nil, fmt.Errorf("fault %q: %w", spec, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// String writes a SPEC that Parse reads as the same Rule.
func (r Rule) String() string {
	var b strings.Builder
	b.WriteString(r.Action.String())
	for _, f := range fields {
		if text := f.get(&r); text != "" {
			b.WriteString("," + f.name + "=" + text)
		}
	}
	return b.String()
}

// MarshalText implements encoding.TextMarshaler.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Rule) UnmarshalText(text []byte) (err error) {
	*r, err = Parse(string(text))
	return err
}

// fieldNames are the keys that an action has.
func fieldNames(a Action) (names []string) {
	for _, f := range fields {
		if f.actors == 0 || f.actors&a.Traits() != 0 {
			names = append(names, f.name)
		}
	}
	return names
}

// mostTime bounds durations, so that sums of them do not overflow.
const mostTime = 24 * time.Hour

func setDuration(d *time.Duration, v string) error {
	n, err := time.ParseDuration(v)
	if err != nil || n <= 0 || n > mostTime {
		return fmt.Errorf("%q is not a time up to 24h: write it like 500us, 10ms or 2s", v)
	}
	*d = n
	return nil
}

func durationText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func setCount(n *uint64, v string) error {
	c, err := strconv.ParseUint(v, 10, 63)
	if err != nil || c == 0 {
		return fmt.Errorf("%q is not a number from 1 on", v)
	}
	*n = c
	return nil
}

func setSeed(n *uint64, v string) (err error) {
	if *n, err = strconv.ParseUint(v, 10, 64); err != nil {
		return fmt.Errorf("%q is not a number of at most 64 bits", v)
	}
	return nil
}

func setQP(n *uint32, v string) error {
	c, err := strconv.ParseUint(v, 0, 24)
	if err != nil || c == 0 {
		return fmt.Errorf("%q is not the number of a queue pair: write it like 17 or 0x11", v)
	}
	*n = uint32(c)
	return nil
}

func numberText(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

func setPrefix(p *netip.Prefix, v string) error {
	if a, err := netip.ParseAddr(v); err == nil && a.Zone() == "" {
		*p = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())
		return nil
	}
	n, err := netip.ParsePrefix(v)
	if err != nil || n.Addr().Is4In6() {
		return fmt.Errorf("%q is not an address or prefix: write it like 10.1.0.1 or 10.1.0.0/24", v)
	}
	*p = n.Masked()
	return nil
}

func prefixText(p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return ""
	case p.IsSingleIP():
		return p.Addr().String()
	}
	return p.String()
}

func (d *Direction) set(v string) error {
	i := slices.Index(directionNames, v)
	if i < 1 {
		return fmt.Errorf("%q is not a direction: write out, in or both", v)
	}
	*d = Direction(i)
	return nil
}

func (r *Range) set(v string) error {
	first, last, is := strings.Cut(v, "-")
	if !is {
		last = first
	}
	var n Range
	if setCount(&n.First, first) != nil || setCount(&n.Last, last) != nil || n.Last < n.First {
		return fmt.Errorf("%q is not a number or range: write 3, or 3-7", v)
	}
	*r = n
	return nil
}

func (r Range) String() string {
	switch {
	case r == Range{}:
		return ""
	case r.First == r.Last:
		return strconv.FormatUint(r.First, 10)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// has reports whether n is in the range.
func (r Range) has(n uint64) bool { return r == Range{} || n >= r.First && n <= r.Last }

func (p *Probability) set(v string) error {
	digits, percent := strings.CutSuffix(v, "%")
	f, err := strconv.ParseFloat(digits, 64)
	if percent {
		f /= 100
	}
	switch {
	case err != nil || strings.ContainsAny(digits, "xXpP_iInN") || !(f > 0 && f <= 1):
		return fmt.Errorf("%q is not a probability: write it like 1%% or 0.01, above 0 and up to 1", v)
	case f == 1:
		*p = 0
	default:
		*p = Probability(max(math.Ldexp(f, 64), 1))
	}
	return nil
}

func (p Probability) String() string {
	if p == 0 {
		return ""
	}
	return strconv.FormatFloat(math.Ldexp(float64(p), -64), 'f', -1, 64)
}

// hits reports whether a random number is a hit.
func (p Probability) hits(random uint64) bool { return p == 0 || random < uint64(p) }

// bitUnits from large to small, so that the first that divides a rate makes the shortest text.
var bitUnits = []struct {
	suffix string
	size   uint64
}{{"Tbit", 1e12}, {"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}}

// mostRate is beyond any device; products with it fit.
const mostRate = 1e15

var errRate = errors.New("not a rate: write bits per second like 10Mbit or 1Gbit")

func (r *BitRate) set(v string) error {
	for _, u := range bitUnits {
		digits, is := strings.CutSuffix(v, u.suffix)
		if !is {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n == 0 || n > mostRate/u.size {
			break
		}
		*r = BitRate(n * u.size)
		return nil
	}
	return fmt.Errorf("%q is %w", v, errRate)
}

func (r BitRate) String() string {
	for _, u := range bitUnits {
		if r != 0 && uint64(r)%u.size == 0 {
			return strconv.FormatUint(uint64(r)/u.size, 10) + u.suffix
		}
	}
	return ""
}

// transmit is how long bytes take at the rate.
func (r BitRate) transmit(bytes int) time.Duration {
	return time.Duration(float64(bytes) * 8 / float64(r) * float64(time.Second))
}
