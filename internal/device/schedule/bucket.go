package schedule

import "vrdma.dev/vrdma/internal/ib"

// A bucket is a token bucket: it fills at a rate up to a burst, and whoever moves something takes
// from it. It may be overdrawn by what a turn moves beyond what it held.
//
//	level ≤ least/8: it is dry, and nobody may take until it holds least
//
// So who is over a cap has a turn that is worth it, and then none. If it went on with whatever came
// in during that turn, and during the turns of others, it would have three small turns more.
//
// If the loop was without a processor when who waits should have gone on, what came in meanwhile
// may be more than the bucket holds. It is not lost, but owed, and comes in over the next 100 ms
// beside the rate: who waits cannot help it and would never make up for it, and others should not
// see it all at once. As long as something is owed the bucket holds half, so that both together are
// seldom more than a burst; see room.
//
// It is filled when it is looked at. The numbers are floating point: at ten messages a millisecond
// a microsecond fills a hundredth of a token, which must not be lost.
type bucket struct {
	perNS float64 // 0: no limit
	burst float64
	least float64 // what there should be before who was parked goes on
	level float64
	owed  float64
	at    ib.Time
	dry   bool
}

const (
	// refill is how much of the rate somebody who was parked finds in the bucket: a turn that
	// is shorter is not worth being woken for. To be woken for 32 KiB costs more than to copy
	// them, and others pay for that.
	refill = ib.Time(250_000)
	// mostLeast bounds that: a turn of so many bytes is long enough.
	mostLeast = 128 << 10
	// mostLate bounds what is owed for one time in which the loop was late, and mostOwed all
	// that is.
	mostLate = ib.Time(20_000_000)
	mostOwed = ib.Time(40_000_000)
	// muchOwed is how many bursts are much.
	muchOwed = 3
	// payTime is how long it takes until most of what is owed has come in.
	payTime = ib.Time(100_000_000)
)

// set changes the rate, in units a second, and the burst. A new bucket is full.
func (b *bucket) set(rate, burst uint64, now ib.Time) {
	fresh := b.perNS == 0
	b.fill(now)
	b.perNS, b.burst = float64(rate)/1e9, float64(min(burst, mostBurst))
	b.least = max(1, min(b.perNS*float64(refill), mostLeast, b.burst/2))
	if b.at = now; fresh {
		b.level = b.burst
	}
	b.level, b.owed, b.dry = min(b.level, b.burst), 0, false
}

// setBytes changes the rate of a bucket of bytes.
func (b *bucket) setBytes(rate, burst uint64, now ib.Time) {
	if burst == 0 {
		burst = max(rate/1000, leastBurst)
	}
	b.set(rate, burst, now)
}

// setMessages changes the rate of a bucket of messages.
func (b *bucket) setMessages(rate uint64, now ib.Time) {
	b.set(rate, max(rate/1000, leastMessages), now)
}

func (b *bucket) limited() bool { return b.perNS != 0 }

// fill brings the level up to now.
func (b *bucket) fill(now ib.Time) {
	if now <= b.at {
		return
	}
	d := float64(now - b.at)
	gain := b.perNS * d
	if b.at = now; b.owed > 0 {
		gain += b.pay(d)
	}
	if most := b.room(); b.level < most {
		b.level = min(b.level+gain, most)
	}
}

// room returns how much it holds: half of a burst as long as something is owed, but all of it if that is
// much. Then the loop is late again and again, and half a burst each time would be less than the rate.
func (b *bucket) room() float64 {
	if b.owed > 0 && b.owed < muchOwed*b.burst {
		return b.burst / 2
	}
	return b.burst
}

// pay returns what comes in, in d nanoseconds, of what is owed.
func (b *bucket) pay(d float64) float64 {
	if b.owed < b.least/16 {
		b.owed = 0
		return 0
	}
	paid := b.owed * min(d/float64(payTime), 1)
	b.owed -= paid
	return paid
}

// catchUp brings the level up to now for who waits: what does not fit is owed.
func (b *bucket) catchUp(now ib.Time) {
	if b.perNS == 0 || now <= b.at {
		return
	}
	if b.level > b.burst/2 { // another bucket is what it waits for
		b.fill(now)
		return
	}
	d := float64(min(now-b.at, mostLate))
	have := b.level + b.perNS*d
	if b.at = now; b.owed > 0 {
		have += b.pay(d)
	}
	if have <= b.room() {
		b.level = have
		return
	}
	b.level = b.burst / 2
	if b.owed > 0 {
		b.level = b.room()
	}
	b.owed = min(b.owed+have-b.level, b.perNS*float64(mostOwed))
}

// open reports whether somebody may take from it now.
func (b *bucket) open(now ib.Time) bool {
	if b.perNS == 0 {
		return true
	}
	b.fill(now)
	if b.dry && b.level >= b.least {
		b.dry = false
	}
	return !b.dry && b.level >= 1
}

// take takes n, which may overdraw it.
func (b *bucket) take(n int) {
	if b.perNS == 0 {
		return
	}
	if b.level -= float64(n); b.level <= b.least/8 {
		b.dry = true
	}
}

// ready returns when who is parked for it goes on.
func (b *bucket) ready() ib.Time {
	if b.perNS == 0 || b.level >= b.least {
		return b.at
	}
	return b.at + ib.Time((b.least-b.level)/b.perNS) + 1
}

// within returns the smaller of most and what the bucket holds, each unit of which is worth size.
func (b *bucket) within(most, size int, now ib.Time) int {
	if b.perNS == 0 {
		return most
	}
	b.fill(now)
	if have := b.level * float64(size); have < float64(most) {
		return int(have)
	}
	return most
}

// caps are the buckets of a NIC or a tenant, one direction of it.
type caps struct {
	bytes, messages bucket
}

func (c *caps) set(bytes, messages, burst uint64, now ib.Time) {
	c.bytes.setBytes(bytes, burst, now)
	c.messages.setMessages(messages, now)
}

func (c *caps) limited() bool { return c.bytes.limited() || c.messages.limited() }

func (c *caps) open(now ib.Time) bool { return c.bytes.open(now) && c.messages.open(now) }

func (c *caps) take(bytes, messages int) {
	c.bytes.take(bytes)
	c.messages.take(messages)
}

func (c *caps) catchUp(now ib.Time) {
	c.bytes.catchUp(now)
	c.messages.catchUp(now)
}

func (c *caps) fill(now ib.Time) {
	c.bytes.fill(now)
	c.messages.fill(now)
}

func (c *caps) ready() ib.Time { return max(c.bytes.ready(), c.messages.ready()) }

// MessageCost is what a message costs at least of a turn's budget of bytes, as in package
// transport: so a budget bounds messages, too.
const MessageCost = 256

func (c *caps) within(most int, now ib.Time) int {
	most = c.bytes.within(most, 1, now)
	return c.messages.within(most, MessageCost, now)
}
