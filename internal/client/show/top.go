package show

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// TopJSON prints the status of each NIC with its rates.
func TopJSON(w io.Writer, before, now *protocol.Top) error {
	type nicRates struct {
		protocol.NICStatus
		Rates map[string]float64 `json:"rates"` // of the counters, per second
	}
	out := struct {
		*protocol.Top
		Seconds float64    `json:"seconds"` // the interval of the rates
		NICs    []nicRates `json:"nics"`
	}{Top: now, Seconds: now.Time.Sub(before.Time).Seconds(), NICs: []nicRates{}}
	for _, r := range topRows(before, now) {
		n := nicRates{r.NICStatus, map[string]float64{}}
		for name, d := range r.rates {
			n.Rates[name] = d
		}
		out.NICs = append(out.NICs, n)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(out)
}

// DrawTop fills the screen. Every line ends with an escape sequence that clears the rest of it.
func DrawTop(w io.Writer, before, now *protocol.Top, v TopView) error {
	var table bytes.Buffer
	if err := Top(&table, before, now, v); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimRight(table.String(), "\n"), "\n")
	if v.Height > 1 && len(lines) > v.Height-1 {
		lines = lines[:v.Height-1]
	}
	var out bytes.Buffer
	out.WriteString("\x1b[H")
	for _, l := range lines {
		if r := []rune(l); v.Width > 0 && len(r) > v.Width {
			l = string(r[:v.Width])
		}
		out.WriteString(l + "\x1b[K\r\n")
	}
	out.WriteString("\x1b[J")
	_, err := w.Write(out.Bytes())
	return err
}

// A topRow is a NIC, or the sum of a tenant's NICs.
type topRow struct {
	protocol.NICStatus
	sum   bool // of a tenant
	nics  int  // that it is the sum of
	rates map[string]float64
}

// A TopView holds the options of the table.
type TopView struct {
	Sort          SortKey
	tenants       bool // sums only
	Width, Height int  // of the terminal; 0: none
}

// Key changes the view for a pressed key.
func (v *TopView) Key(k byte) {
	switch k {
	case 't':
		v.tenants = !v.tenants
	default:
		for i, s := range sorts {
			if s.key == k {
				v.Sort = SortKey(i)
			}
		}
	}
}

// loopShares returns a line that shows how busy each loop was and how many sessions it has; "": there is only one.
func loopShares(before, now *protocol.Top, seconds float64) string {
	if len(now.Loops) == 0 || len(before.Loops) != len(now.Loops) || seconds <= 0 {
		return ""
	}
	shares, sessions := make([]string, len(now.Loops)), make([]string, len(now.Loops))
	for i, l := range now.Loops {
		shares[i] = fmt.Sprintf("%.0f", 100*(l.Busy-before.Loops[i].Busy).Seconds()/seconds)
		sessions[i] = strconv.Itoa(l.Sessions)
	}
	return "loops " + strings.Join(shares, " ") + " % with " + strings.Join(sessions, " ") + " sessions\n"
}

// A SortKey is what the table is sorted by: an index into sorts.
type SortKey int

var sorts = []struct {
	name string
	key  byte
	of   func(*topRow) float64
}{
	{"name", 'n', func(*topRow) float64 { return 0 }},
	{"out", 'o', func(r *topRow) float64 { return bytesOut(r.rates) }},
	{"in", 'i', func(r *topRow) float64 { return bytesIn(r.rates) }},
	{"messages", 'm', func(r *topRow) float64 { return r.rate("sent_") + r.rate("received_") }},
	{"drops", 'd', func(r *topRow) float64 { return r.rate("dropped_") + r.rate("denied_") }},
	{"cpu", 'c', func(r *topRow) float64 { return timeOf(r.rates) }},
}

// SortNamed returns the key with a name.
func SortNamed(name string) (SortKey, bool) {
	i := slices.IndexFunc(sorts, func(s struct {
		name string
		key  byte
		of   func(*topRow) float64
	}) bool {
		return s.name == name
	})
	return SortKey(i), i >= 0
}

// rate returns the sum of the rates of columns with a common prefix.
func (r *topRow) rate(begins string) (sum float64) {
	for name, v := range r.rates {
		if strings.HasPrefix(name, begins) {
			sum += v
		}
	}
	return sum
}

// topRows returns the rows of all NICs, and of deleted NICs whose counters changed.
func topRows(before, now *protocol.Top) []topRow {
	type key struct{ tenant, network, nic string }
	old := make(map[key]protocol.NICStatus)
	for _, n := range before.NICs {
		old[key{n.Tenant, n.Network, n.NIC}] = n
	}
	var out []topRow
	for _, n := range now.NICs {
		r := topRow{NICStatus: n, rates: make(map[string]float64)}
		first := old[key{n.Tenant, n.Network, n.NIC}]
		was, seconds := first.Used, now.Time.Sub(before.Time).Seconds()
		if !first.At.IsZero() && !n.At.IsZero() {
			seconds = n.At.Sub(first.At).Seconds()
		}
		for name, v := range n.Used {
			if d := v - was[name]; v > was[name] && seconds > 0 {
				r.rates[name] = float64(d) / seconds
			}
		}
		// Counters without a NIC are shown only when they change.
		if n.Live && !strings.HasPrefix(n.Tenant, "_") || len(r.rates) > 0 {
			out = append(out, r)
		}
	}
	return out
}

// sumRows adds, for every tenant, the sum of its NICs.
func sumRows(rows []topRow) map[string]*topRow {
	sums := make(map[string]*topRow)
	for _, r := range rows {
		s := sums[r.Tenant]
		if s == nil {
			s = &topRow{NICStatus: protocol.NICStatus{Tenant: r.Tenant}, sum: true, rates: make(map[string]float64)}
			sums[r.Tenant] = s
		}
		if r.Live && r.NIC != "" {
			s.nics++
		}
		s.Sessions += r.Sessions
		s.QPs += r.QPs
		s.Connections += r.Connections
		s.Registered += r.Registered
		for name, v := range r.rates {
			s.rates[name] += v
		}
	}
	return sums
}

// arrange sorts tenants, each followed by its NICs. A tenant with one NIC has no sum.
func arrange(rows []topRow, v TopView) []topRow {
	by := sorts[v.Sort].of
	compare := func(a, b *topRow) int {
		return cmp.Or(cmp.Compare(by(b), by(a)), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.NIC, b.NIC), cmp.Compare(a.Network, b.Network))
	}
	var out []topRow
	tenants := slices.Collect(maps.Values(sumRows(rows)))
	slices.SortFunc(tenants, compare)
	slices.SortFunc(rows, func(a, b topRow) int { return compare(&a, &b) })
	for _, t := range tenants {
		if v.tenants || t.nics > 1 {
			out = append(out, *t)
		}
		if v.tenants {
			continue
		}
		for _, r := range rows {
			if r.Tenant == t.Tenant {
				out = append(out, r)
			}
		}
	}
	return out
}

// Top prints the rates between two readings of the NICs' counters.
func Top(w io.Writer, before, now *protocol.Top, v TopView) error {
	rows := arrange(topRows(before, now), v)
	seconds := now.Time.Sub(before.Time).Seconds()
	cpu := 0.0
	if seconds > 0 {
		cpu = (now.CPU - before.CPU) / seconds
	}
	whole, loops := "", "" // the daemon's totals, for users that see all NICs
	if now.Pid != 0 {
		whole, loops = fmt.Sprintf("pid %d, daemon %.0f %% of a core, ", now.Pid, 100*cpu), loopShares(before, now, seconds)
	}
	fmt.Fprintf(w, "vrdma top: %sup %s, sorted by %s\n%s\n", whole, age(now.Time, now.Started), sorts[v.Sort].name, loops)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	// The column for containers exists only if there are some.
	named := slices.ContainsFunc(rows, func(r topRow) bool { return r.Container != "" })
	in := func(text string) string {
		if !named {
			return ""
		}
		return cmp.Or(text, "-") + "\t"
	}
	fmt.Fprintln(t, "TENANT\tNIC\t"+in("NOW IN")+"NETWORK\tOUT/s\tIN/s\tSENT/s\tRCVD/s\tAGAIN/s\tCPU\tCONN\tMEMORY\tDROPS/s")
	for _, r := range rows {
		name := r.NIC
		if r.sum {
			name = fmt.Sprintf("(%d)", r.nics)
		}
		fmt.Fprintf(t, "%s\t%s\t%s%s\t%s\t%s\t%s\t%s\t%s\t%.1f%%\t%d\t%s\t%s\n", r.Tenant, cmp.Or(name, "-"), in(Plain(r.Container)), cmp.Or(r.Network, "-"),
			bytesText(uint64(bytesOut(r.rates))), bytesText(uint64(bytesIn(r.rates))),
			countText(r.rate("sent_")), countText(r.rate("received_")), countText(r.rates["retransmitted_packets"]),
			timeOf(r.rates)/1e7, r.Connections, bytesText(r.Registered), reasonsText(&r))
	}
	return t.Flush()
}

// countText formats a rate in at most five digits.
func countText(v float64) string {
	switch {
	case v >= 1e7:
		return fmt.Sprintf("%.1fM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.1fk", v/1e3)
	}
	return fmt.Sprintf("%.0f", v)
}

// reasonsText formats drops and denials by reason, the largest first.
func reasonsText(r *topRow) string {
	type reason struct {
		name string
		rate float64
	}
	var list []reason
	for name, v := range r.rates {
		if n, ok := strings.CutPrefix(name, "dropped_"); ok {
			list = append(list, reason{n, v})
		} else if n, ok := strings.CutPrefix(name, "denied_"); ok {
			list = append(list, reason{"denied " + n, v})
		}
	}
	if len(list) == 0 {
		return "-"
	}
	slices.SortFunc(list, func(a, b reason) int { return cmp.Or(cmp.Compare(b.rate, a.rate), cmp.Compare(a.name, b.name)) })
	var out []string
	for _, l := range list {
		out = append(out, fmt.Sprintf("%s %s", l.name, countText(l.rate)))
	}
	return strings.Join(out, ", ")
}
