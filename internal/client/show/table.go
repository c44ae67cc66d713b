package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// labelText formats labels: role=web,site=a.
func labelText(labels map[string]string) string {
	list := make([]string, 0, len(labels))
	for k, v := range labels {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}

// A column of a table of objects; wide columns appear only with -o wide.
type column struct {
	title string
	wide  bool
	value func(tenant.Object, *control.Status) string
}

// nameColumn is the first column of every kind, in the form that the command line accepts.
var nameColumn = column{title: "NAME", value: func(o tenant.Object, _ *control.Status) string { return o.Key().Path() }}

var labelsColumn = column{title: "LABELS", wide: true, value: func(o tenant.Object, _ *control.Status) string { return labelText(o.Meta().Labels) }}

// objectColumns are the columns of each kind.
var objectColumns = map[tenant.Kind][]column{
	tenant.KindTenant: {
		nameColumn,
		tenantColumn("WEIGHT", func(s *tenant.TenantSpec) string { return strconv.Itoa(max(1, s.Weight)) }),
		tenantColumn("NICS", func(s *tenant.TenantSpec) string { return limitText(s.Quota.NICs) }),
		tenantColumn("QUEUE-PAIRS", func(s *tenant.TenantSpec) string { return limitText(s.Quota.QueuePairs) }),
		tenantColumn("MEMORY", func(s *tenant.TenantSpec) string { return quantityText(s.Quota.Memory) }),
		tenantColumn("RATE-OUT", func(s *tenant.TenantSpec) string { return quantityText(s.Rate.Out) }),
		tenantColumn("RATE-IN", func(s *tenant.TenantSpec) string { return quantityText(s.Rate.In) }),
		usedColumn("NICS-USED", "nics"), usedColumn("QPS-USED", "queuePairs"), usedColumn("MEMORY-USED", "memory"), usedColumn("DEVICES-USED", "devices"),
		whenWide(tenantColumn("ADMINISTRATORS", func(s *tenant.TenantSpec) string { return whoText(&s.Administrators) })),
		labelsColumn,
	},
	tenant.KindNetwork: {
		nameColumn,
		networkColumn("VNI", func(s *tenant.NetworkSpec) string { return limitText(int(s.VNI)) }),
		networkColumn("SUBNETS", func(s *tenant.NetworkSpec) string { return listText(s.Subnets) }),
		networkColumn("MTU", func(s *tenant.NetworkSpec) string { return limitText(s.MTU) }),
		networkColumn("DEFAULT", func(s *tenant.NetworkSpec) string { return string(cmp.Or(s.Default, tenant.Allow)) }),
		networkColumn("WAY", func(s *tenant.NetworkSpec) string { return string(cmp.Or(s.Way, tenant.WayVXLAN)) }),
		{title: "TRUSTS", value: func(o tenant.Object, st *control.Status) string {
			return trustText(&o.(*tenant.Network).Spec, st.Forgeable)
		}},
		whenWide(networkColumn("ENCRYPTION", func(s *tenant.NetworkSpec) string { return strconv.FormatBool(s.Encryption) })),
		labelsColumn,
	},
	tenant.KindNIC: {
		nameColumn,
		nicColumn("NETWORK", func(s *tenant.NICSpec) string { return s.Network }),
		nicColumn("ADDRESSES", func(s *tenant.NICSpec) string { return listText(s.Addresses) }),
		{title: "HOST", value: func(o tenant.Object, st *control.Status) string {
			return cmp.Or(o.(*tenant.NIC).Spec.Host, st.Host, "anywhere")
		}},
		{title: "STATE", value: func(_ tenant.Object, st *control.Status) string { return string(st.State) }},
		whenWide(nicColumn("CLASS", func(s *tenant.NICSpec) string { return string(cmp.Or(s.Class, tenant.ClassBulk)) })),
		whenWide(nicColumn("RATE-OUT", func(s *tenant.NICSpec) string { return quantityText(s.Rate.Out) })),
		whenWide(nicColumn("RATE-IN", func(s *tenant.NICSpec) string { return quantityText(s.Rate.In) })),
		whenWide(nicColumn("GUARANTEE", func(s *tenant.NICSpec) string { return quantityText(s.Guarantee) })),
		whenWide(nicColumn("OPEN", func(s *tenant.NICSpec) string { return whoText(&s.Open) })),
		labelsColumn,
		{title: "REASON", wide: true, value: func(_ tenant.Object, st *control.Status) string { return Plain(st.Reason) }},
	},
	tenant.KindHost: {
		nameColumn,
		hostColumn("TYPE", func(s *tenant.HostSpec) string { return string(cmp.Or(s.Type, tenant.HostVRDMA)) }),
		hostColumn("ADDRESSES", func(s *tenant.HostSpec) string { return listText(s.Addresses) }),
		hostColumn("PORT", func(s *tenant.HostSpec) string { return strconv.Itoa(cmp.Or(s.Port, overlay.DefaultPort)) }),
		{title: "STATE", value: func(_ tenant.Object, st *control.Status) string { return string(st.State) }},
		hostColumn("VERSION", func(s *tenant.HostSpec) string { return Plain(s.Version) }),
		whenWide(hostColumn("PUBLIC-KEY", func(s *tenant.HostSpec) string {
			if s.PublicKey == (tenant.PublicKey{}) {
				return ""
			}
			return s.PublicKey.String()
		})),
		whenWide(hostColumn("PROCESSORS", func(s *tenant.HostSpec) string { return limitText(s.Capacity.Processors) })),
		whenWide(hostColumn("MEMORY", func(s *tenant.HostSpec) string { return quantityText(s.Capacity.Memory) })),
		whenWide(hostColumn("MTU", func(s *tenant.HostSpec) string { return limitText(s.Capacity.MTU) })),
		labelsColumn,
		{title: "REASON", wide: true, value: func(_ tenant.Object, st *control.Status) string { return Plain(st.Reason) }},
	},
	tenant.KindFault: {
		nameColumn,
		faultColumn("NICS", func(s *tenant.FaultSpec) string {
			return cmp.Or(strings.Trim(strings.Join(s.NICs.Names, ",")+" "+labelText(s.NICs.Labels), " "), "all")
		}),
		{title: "HITS", value: func(_ tenant.Object, st *control.Status) string { return strconv.FormatUint(st.Hits, 10) }},
		faultColumn("RULES", func(s *tenant.FaultSpec) string {
			var rules []string
			for _, r := range s.Rules {
				rules = append(rules, r.String())
			}
			return strings.Join(rules, " ")
		}),
		labelsColumn,
	},
	tenant.KindPolicy: {
		nameColumn,
		policyColumn("NETWORK", func(s *tenant.PolicySpec) string { return cmp.Or(s.NICs.Network, "any") }),
		policyColumn("NICS", func(s *tenant.PolicySpec) string {
			return cmp.Or(strings.Trim(strings.Join(s.NICs.Names, ",")+" "+labelText(s.NICs.Labels), " "), "all")
		}),
		policyColumn("ALLOW", func(s *tenant.PolicySpec) string { return strconv.Itoa(len(s.Allow)) }),
		policyColumn("DENY", func(s *tenant.PolicySpec) string { return strconv.Itoa(len(s.Deny)) }),
		labelsColumn,
	},
}

// trustText says whose packets the hosts of a network accept: those of daemons, those of every user of some hosts, or those of every
// sender in a network that is not the daemon's own.
func trustText(s *tenant.NetworkSpec, forgeable []string) string {
	switch {
	case s.Way == tenant.WayHost:
		return "the hosts' network"
	case s.Way == tenant.WayNamespace:
		return "the containers' network"
	case len(forgeable) == 0:
		return "daemons"
	}
	return "users of " + strings.Join(forgeable, ",")
}

// trustNote explains trustText; empty: it needs no explanation.
func trustNote(s *tenant.NetworkSpec, forgeable []string) string {
	switch {
	case s.Way == tenant.WayHost:
		return "any user of a host that this daemon has not recognised as a vrdma host can forge that host's packets: way vxlan with encryption: true prevents it"
	case s.Way == tenant.WayNamespace:
		return "any program in a container's network can forge packets of its NIC, and source ports are not checked: way vxlan with encryption: true prevents it"
	case len(forgeable) > 0:
		return "any user of these hosts can forge packets of their NICs in this network: encryption: true prevents it"
	}
	return ""
}

func faultColumn(title string, f func(*tenant.FaultSpec) string) column {
	return column{title: title, value: func(o tenant.Object, _ *control.Status) string { return f(&o.(*tenant.Fault).Spec) }}
}

// usedColumn shows what a tenant holds of a kind, and the limit.
func usedColumn(title, kind string) column {
	return column{title: title, wide: true, value: func(_ tenant.Object, st *control.Status) string {
		for _, q := range st.Quota {
			if q.Kind != kind {
				continue
			}
			used, limit := strconv.FormatUint(q.Used, 10), strconv.FormatUint(q.Limit, 10)
			if kind == "memory" {
				used, limit = tenant.Bytes(q.Used).String(), tenant.Bytes(q.Limit).String()
			}
			if q.Limit == 0 {
				return used
			}
			return used + "/" + limit
		}
		return ""
	}}
}

func whenWide(c column) column {
	c.wide = true
	return c
}

func tenantColumn(title string, f func(*tenant.TenantSpec) string) column {
	return column{title: title, value: func(o tenant.Object, _ *control.Status) string { return f(&o.(*tenant.Tenant).Spec) }}
}

func networkColumn(title string, f func(*tenant.NetworkSpec) string) column {
	return column{title: title, value: func(o tenant.Object, _ *control.Status) string { return f(&o.(*tenant.Network).Spec) }}
}

func nicColumn(title string, f func(*tenant.NICSpec) string) column {
	return column{title: title, value: func(o tenant.Object, _ *control.Status) string { return f(&o.(*tenant.NIC).Spec) }}
}

func hostColumn(title string, f func(*tenant.HostSpec) string) column {
	return column{title: title, value: func(o tenant.Object, _ *control.Status) string { return f(&o.(*tenant.Host).Spec) }}
}

func policyColumn(title string, f func(*tenant.PolicySpec) string) column {
	return column{title: title, value: func(o tenant.Object, _ *control.Status) string { return f(&o.(*tenant.Policy).Spec) }}
}

// limitText formats a limit; 0 means none.
func limitText(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func quantityText[T interface {
	~uint64
	fmt.Stringer
}](n T) string {
	if n == 0 {
		return ""
	}
	return n.String()
}

func listText[T fmt.Stringer](values []T) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = v.String()
	}
	return strings.Join(texts, ",")
}

// whoText formats users and groups: uid=1000,gid=50.
func whoText(w *tenant.Who) string {
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

// A rowPrinter prints rows as they arrive. The first rows determine the columns' widths.
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
	for _, c := range objectColumns[kind] {
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
	status.Quota, status.Forgeable = it.Quota, it.Forgeable
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
