package schedule

import "vrdma.dev/vrdma/internal/ib"

// A bucket is a token bucket: it fills at a rate up to a burst, and traffic takes tokens from it. A turn may overdraw it.
//
//	level ≤ least/8: it is empty, and no turn is allowed until it holds least
//
// So a NIC over its cap gets one turn of useful size, and then none. Without this rule it would get several tiny turns from the tokens that
// arrive during its own turn and those of others.
//
// If the loop had no processor when a waiting NIC should have continued, the tokens of that time may exceed the burst. They are
// not lost but deferred: they are added over the next 100 ms on top of the rate. The NIC could not use them earlier, and other
// NICs should not see them all at once. While tokens are deferred, the bucket holds half a burst, so that both together rarely
// exceed a burst; see room.
//
// A bucket is refilled when it is read. Levels are floating point: at ten messages per millisecond a microsecond adds a hundredth
// of a token, which must not be lost.
type bucket struct {
	perNS    float64 // 0: no limit
	burst    float64
	least    float64 // level at which a parked NIC continues
	level    float64
	deferred float64
	at       ib.Time
	dry      bool
}

const (
	// refill is the time's worth of tokens that a parked NIC finds in the bucket. A shorter turn is not worth the wake-up: waking
	// for 32 KiB costs more than copying them, at the expense of others.
	refill = ib.Time(250_000)
	// mostLeast limits that: a turn of so many bytes is long enough.
	mostLeast = 128 << 10
	// mostLate limits the tokens deferred for one delay of the loop, and mostDeferred the total.
	mostLate     = ib.Time(20_000_000)
	mostDeferred = ib.Time(40_000_000)
	// manyBursts is the number of bursts above which the bucket holds a full burst again.
	manyBursts = 3
	// releaseTime is the time in which most of the deferred tokens are added.
	releaseTime = ib.Time(100_000_000)
)

// set changes the rate, in units per second, and the burst. A new bucket is full.
func (b *bucket) set(rate, burst uint64, now ib.Time) {
	fresh := b.perNS == 0
	b.fill(now)
	b.perNS, b.burst = float64(rate)/1e9, float64(min(burst, mostBurst))
	b.least = max(1, min(b.perNS*float64(refill), mostLeast, b.burst/2))
	if b.at = now; fresh {
		b.level = b.burst
	}
	b.level, b.deferred, b.dry = min(b.level, b.burst), 0, false
}

// inherit makes b continue where o is, if o has less.
func (b *bucket) inherit(o *bucket, now ib.Time) {
	if b.perNS == 0 || o.perNS == 0 {
		return
	}
	b.fill(now)
	o.fill(now)
	if o.level < b.level {
		b.level, b.deferred, b.dry = o.level, o.deferred, o.dry
	}
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

// fill updates the level to now.
func (b *bucket) fill(now ib.Time) {
	if now <= b.at {
		return
	}
	d := float64(now - b.at)
	gain := b.perNS * d
	if b.at = now; b.deferred > 0 {
		gain += b.release(d)
	}
	if most := b.room(); b.level < most {
		b.level = min(b.level+gain, most)
	}
}

// room returns the capacity: half a burst while tokens are deferred, but a whole burst if these are many. Then the loop is late again and
// again, and half a burst each time would be less than the rate.
func (b *bucket) room() float64 {
	if b.deferred > 0 && b.deferred < manyBursts*b.burst {
		return b.burst / 2
	}
	return b.burst
}

// release returns how many deferred tokens are added in d nanoseconds.
func (b *bucket) release(d float64) float64 {
	if b.deferred < b.least/16 {
		b.deferred = 0
		return 0
	}
	released := b.deferred * min(d/float64(releaseTime), 1)
	b.deferred -= released
	return released
}

// catchUp updates the level to now for a waiting NIC: tokens above the capacity are deferred.
func (b *bucket) catchUp(now ib.Time) {
	if b.perNS == 0 || now <= b.at {
		return
	}
	if b.level > b.burst/2 { // the NIC waits for another bucket
		b.fill(now)
		return
	}
	d := float64(min(now-b.at, mostLate))
	have := b.level + b.perNS*d
	if b.at = now; b.deferred > 0 {
		have += b.release(d)
	}
	if have <= b.room() {
		b.level = have
		return
	}
	b.level = b.burst / 2
	if b.deferred > 0 {
		b.level = b.room()
	}
	b.deferred = min(b.deferred+have-b.level, b.perNS*float64(mostDeferred))
}

// open reports whether tokens may be taken now.
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

// ready returns the time at which a NIC parked for this bucket continues.
func (b *bucket) ready() ib.Time {
	if b.perNS == 0 || b.level >= b.least {
		return b.at
	}
	return b.at + ib.Time((b.least-b.level)/b.perNS) + 1
}

// within returns the smaller of most and the bucket's content, each token of which is worth size.
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

// caps are the buckets of a NIC or a tenant for one direction.
type caps struct {
	bytes, messages bucket
}

func (c *caps) set(bytes, messages, burst uint64, now ib.Time) {
	c.bytes.setBytes(bytes, burst, now)
	c.messages.setMessages(messages, now)
}

func (c *caps) inherit(o *caps, now ib.Time) {
	c.bytes.inherit(&o.bytes, now)
	c.messages.inherit(&o.messages, now)
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

// MessageCost is the minimum cost of a message in a turn's budget of bytes, as in package transport. So a budget also limits messages.
const MessageCost = 256

func (c *caps) within(most int, now ib.Time) int {
	most = c.bytes.within(most, 1, now)
	return c.messages.within(most, MessageCost, now)
}
