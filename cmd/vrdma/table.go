package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"vrdma/internal/control"
	"vrdma/internal/tenant"
)

// A column of a table of objects; some are there only if it is to be wide.
type column struct {
	title string
	wide  bool
	value func(tenant.Object, *control.Status) string
}

// name is the first column of all: as the command line takes it.
var name = column{title: "NAME", value: func(o tenant.Object, _ *control.Status) string { return o.Key().Path() }}

var labels = column{title: "LABELS", wide: true, value: func(o tenant.Object, _ *control.Status) string { return labelText(o.Meta().Labels) }}

// columns are those of each kind.
var columns = map[tenant.Kind][]column{
	tenant.KindTenant: {
		name,
		ofTenant("WEIGHT", func(s *tenant.TenantSpec) string { return strconv.Itoa(max(1, s.Weight)) }),
		ofTenant("NICS", func(s *tenant.TenantSpec) string { return limit(s.Quota.NICs) }),
		ofTenant("QUEUE-PAIRS", func(s *tenant.TenantSpec) string { return limit(s.Quota.QueuePairs) }),
		ofTenant("MEMORY", func(s *tenant.TenantSpec) string { return quantity(s.Quota.Memory) }),
		ofTenant("RATE-OUT", func(s *tenant.TenantSpec) string { return quantity(s.Rate.Out) }),
		ofTenant("RATE-IN", func(s *tenant.TenantSpec) string { return quantity(s.Rate.In) }),
		wide(ofTenant("ADMINISTRATORS", func(s *tenant.TenantSpec) string { return who(&s.Administrators) })),
		labels,
	},
	tenant.KindNetwork: {
		name,
		ofNetwork("VNI", func(s *tenant.NetworkSpec) string { return limit(int(s.VNI)) }),
		ofNetwork("SUBNETS", func(s *tenant.NetworkSpec) string { return list(s.Subnets) }),
		ofNetwork("MTU", func(s *tenant.NetworkSpec) string { return limit(s.MTU) }),
		ofNetwork("DEFAULT", func(s *tenant.NetworkSpec) string { return string(cmp.Or(s.Default, tenant.Allow)) }),
		ofNetwork("WAY", func(s *tenant.NetworkSpec) string { return string(cmp.Or(s.Way, tenant.WayVXLAN)) }),
		labels,
	},
	tenant.KindNIC: {
		name,
		ofNIC("NETWORK", func(s *tenant.NICSpec) string { return s.Network }),
		ofNIC("ADDRESSES", func(s *tenant.NICSpec) string { return list(s.Addresses) }),
		ofNIC("HOST", func(s *tenant.NICSpec) string { return cmp.Or(s.Host, "anywhere") }),
		{title: "STATE", value: func(_ tenant.Object, st *control.Status) string { return string(st.State) }},
		wide(ofNIC("CLASS", func(s *tenant.NICSpec) string { return string(cmp.Or(s.Class, tenant.ClassBulk)) })),
		wide(ofNIC("RATE-OUT", func(s *tenant.NICSpec) string { return quantity(s.Rate.Out) })),
		wide(ofNIC("RATE-IN", func(s *tenant.NICSpec) string { return quantity(s.Rate.In) })),
		wide(ofNIC("GUARANTEE", func(s *tenant.NICSpec) string { return quantity(s.Guarantee) })),
		wide(ofNIC("OPEN", func(s *tenant.NICSpec) string { return who(&s.Open) })),
		labels,
		{title: "REASON", wide: true, value: func(_ tenant.Object, st *control.Status) string { return st.Reason }},
	},
	tenant.KindPolicy: {
		name,
		ofPolicy("NETWORK", func(s *tenant.PolicySpec) string { return cmp.Or(s.NICs.Network, "any") }),
		ofPolicy("NICS", func(s *tenant.PolicySpec) string {
			return cmp.Or(strings.Trim(strings.Join(s.NICs.Names, ",")+" "+labelText(s.NICs.Labels), " "), "all")
		}),
		ofPolicy("ALLOW", func(s *tenant.PolicySpec) string { return strconv.Itoa(len(s.Allow)) }),
		ofPolicy("DENY", func(s *tenant.PolicySpec) string { return strconv.Itoa(len(s.Deny)) }),
		labels,
	},
}

func wide(c column) column {
	c.wide = true
	return c
}

func ofTenant(title string, f func(*tenant.TenantSpec) string) column {
	return column{title: title, value: func(o tenant.Object, _ *control.Status) string { return f(&o.(*tenant.Tenant).Spec) }}
}

func ofNetwork(title string, f func(*tenant.NetworkSpec) string) column {
	return column{title: title, value: func(o tenant.Object, _ *control.Status) string { return f(&o.(*tenant.Network).Spec) }}
}

func ofNIC(title string, f func(*tenant.NICSpec) string) column {
	return column{title: title, value: func(o tenant.Object, _ *control.Status) string { return f(&o.(*tenant.NIC).Spec) }}
}

func ofPolicy(title string, f func(*tenant.PolicySpec) string) column {
	return column{title: title, value: func(o tenant.Object, _ *control.Status) string { return f(&o.(*tenant.Policy).Spec) }}
}

// limit is a number that 0 leaves open.
func limit(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func quantity[T interface {
	~uint64
	fmt.Stringer
}](n T) string {
	if n == 0 {
		return ""
	}
	return n.String()
}

func list[T fmt.Stringer](values []T) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = v.String()
	}
	return strings.Join(texts, ",")
}

// who is uid=1000,gid=50.
func who(w *tenant.Who) string {
	var texts []string
	for _, id := range w.UIDs {
		texts = append(texts, "uid="+strconv.Itoa(id))
	}
	for _, id := range w.GIDs {
		texts = append(texts, "gid="+strconv.Itoa(id))
	}
	if w.Container != "" {
		texts = append(texts, "container="+w.Container)
	}
	if w.Namespace != "" {
		texts = append(texts, "namespace="+w.Namespace)
	}
	return strings.Join(texts, ",")
}

// printTables prints a table for each kind.
func printTables(w io.Writer, items []control.Item, wide bool) error {
	p := &rowPrinter{w: w, wide: wide}
	for len(items) > 0 {
		n := 1
		for n < len(items) && items[n].Key.Kind == items[0].Key.Kind {
			n++
		}
		if p.kind != "" {
			fmt.Fprintln(w)
		}
		if err := p.print(items[:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// A rowPrinter prints rows as they come. The first that it gets make the columns' widths.
type rowPrinter struct {
	w      io.Writer
	wide   bool
	kind   tenant.Kind
	shown  []column
	widths []int
}

func (p *rowPrinter) print(items []control.Item) error {
	var rows [][]string
	for _, it := range items {
		if it.Key.Kind != p.kind {
			p.flush(rows)
			rows = p.begin(it.Key.Kind)
		}
		row, err := p.row(it)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	return p.flush(rows)
}

// begin starts the table of a kind with its titles.
func (p *rowPrinter) begin(kind tenant.Kind) [][]string {
	p.kind, p.shown, p.widths = kind, nil, nil
	var titles []string
	for _, c := range columns[kind] {
		if !c.wide || p.wide {
			p.shown = append(p.shown, c)
			titles = append(titles, c.title)
		}
	}
	return [][]string{titles}
}

func (p *rowPrinter) row(it control.Item) ([]string, error) {
	if it.Deleted {
		return []string{it.Key.Path(), "deleted"}, nil
	}
	o, err := tenant.Unmarshal(it.Object)
	if err != nil {
		return nil, err
	}
	status := it.Status
	if status == nil {
		status = &control.Status{}
	}
	row := make([]string, len(p.shown))
	for i, c := range p.shown {
		row[i] = cmp.Or(c.value(o, status), "-")
	}
	return row, nil
}

// flush prints rows, aligned by the widest of the first ones.
func (p *rowPrinter) flush(rows [][]string) error {
	if p.widths == nil {
		p.widths = make([]int, len(p.shown))
		for _, row := range rows {
			for i, cell := range row {
				p.widths[i] = max(p.widths[i], utf8.RuneCountInString(cell))
			}
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", max(0, p.widths[i]-utf8.RuneCountInString(cell))+3))
			}
		}
		if _, err := fmt.Fprintln(p.w, b.String()); err != nil {
			return err
		}
	}
	return nil
}
