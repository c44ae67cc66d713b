package meter

import "time"

// How long records stay per minute, and then per hour. Later they are per day and tenant, and those are kept a year and
// a month. If there are more than mostRecords, the times for minutes and hours are halved until there are not. Days are
// deleted only if that does not suffice.
const (
	keepMinutes = 2 * time.Hour
	keepHours   = 48 * time.Hour
	keepDays    = 400 * 24 * time.Hour

	hour = 60 * minute
	day  = 24 * hour

	rollEvery = time.Hour
)

// mostRecords bounds memory and file: a record takes about 500 bytes.
var mostRecords = 40_000

// rollUp merges old records. Sums per tenant stay the same until a record is older than keepDays. It reports whether
// anything changed. mu is held.
func (m *Meter) rollUp(now time.Time) (changed bool) {
	m.rolled = now
	now = m.newest(now)
	minutes, hours, days := keepMinutes, keepHours, keepDays
	for {
		changed = m.rollUpBefore(now.Add(-minutes), now.Add(-hours), now.Add(-days)) || changed
		switch {
		case len(m.records) <= mostRecords || days < 2*day*time.Second:
			return m.forgetGone() || changed
		case minutes >= time.Second:
			minutes, hours = minutes/2, hours/2
		default:
			days /= 2
		}
	}
}

// newest is the begin of the last record, or now if that is later. The clock may have been set back, and records in the
// future cannot be merged.
func (m *Meter) newest(now time.Time) time.Time {
	for at := range m.records {
		if t := time.Unix(at.from, 0); at.span == minute && t.After(now) {
			now = t
		}
	}
	return now
}

func (m *Meter) rollUpBefore(minutes, hours, days time.Time) (changed bool) {
	for at, u := range m.records {
		to := at
		switch end := at.from + int64(at.span); {
		case at.span >= day:
			if end <= days.Unix() {
				delete(m.records, at)
				changed = true
			}
			continue
		case end <= hours.Unix():
			to = recordKey{Key{Tenant: at.Tenant}, at.from - at.from%day, day}
		case at.span < hour && end <= minutes.Unix():
			to.from, to.span = at.from-at.from%hour, hour
		default:
			continue
		}
		delete(m.records, at)
		if sum := m.records[to]; sum != nil {
			sum.add(u)
		} else {
			m.records[to] = u
		}
		changed = true
	}
	return changed
}

// forgetGone adds the totals of deleted NICs without records to their tenant's.
func (m *Meter) forgetGone() (changed bool) {
	recorded := make(map[Key]bool)
	for at := range m.records {
		recorded[at.Key] = true
	}
	for k, t := range m.totals {
		if k.NIC == "" || t.live > 0 || recorded[k] {
			continue
		}
		delete(m.totals, k)
		of := Key{Tenant: k.Tenant}
		if sum := m.totals[of]; sum != nil {
			sum.usage.add(&t.usage)
		} else {
			m.totals[of] = &total{usage: t.usage}
		}
		changed = true
	}
	return changed
}

// due reports whether rollUp has to run. mu is held.
func (m *Meter) due(now time.Time) bool {
	return now.Sub(m.rolled) >= rollEvery || now.Before(m.rolled) || len(m.records) > mostRecords+mostRecords/4
}
