package report

import (
	"fmt"
	"slices"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// groups are the ten groups of the progress report with its published values: seconds of one transfer, and of four.
var groups = []struct {
	name, setting, transport string
	sides                    int
	one, four                float64
}{
	{"1: host to host, TCP", experiment.Hosts, experiment.TCP, 1, 1.097, 1.234},
	{"2: host to host, RDMA", experiment.Hosts, experiment.Verbs, 1, 0.173, 0.418},
	{"3: VM to VM, TCP", experiment.VMs, experiment.TCP, 1, 0.982, 1.195},
	{"4: VM to VM, RDMA", experiment.VMs, experiment.Verbs, 1, 0.230, 0.605},
	{"5: container to container, TCP", experiment.Containers, experiment.TCP, 1, 0, 0},
	{"6: container to container, RDMA", experiment.Containers, experiment.Verbs, 1, 0, 0},
	{"7: four VMs a side, TCP", experiment.VMs, experiment.TCP, 4, 0, 0},
	{"8: four VMs a side, RDMA", experiment.VMs, experiment.Verbs, 4, 0, 0},
	{"9: four containers a side, TCP", experiment.Containers, experiment.TCP, 4, 0, 0},
	{"10: four containers a side, RDMA", experiment.Containers, experiment.Verbs, 4, 0, 0},
}

// transferSize is what the report is taken to have transferred.
const transferSize = 1e9

// transfersOf returns the figures of transfers.
func transfersOf(figures []Figure) (list []*Figure) {
	names := []string{"progress-transfers", "progress-guests", "progress-many-containers", "progress-many-guests"}
	for i := range figures {
		if slices.Contains(names, figures[i].Experiment.Name) && figures[i].Metric == experiment.Time {
			list = append(list, &figures[i])
		}
	}
	return list
}

// groupsTable has a value or a reason in every cell.
func groupsTable(figures []Figure) *table {
	transfers := transfersOf(figures)
	if len(transfers) == 0 {
		return nil
	}
	t := &table{title: "The ten groups", head: []string{"group", "one", "four at once", "published: one", "four"},
		why: "Seconds of a transfer of 1 GB, between guests of the bytes that the cell says; the mean over transfers that run at once; median of rounds. " +
			"Groups 7 and 8 show that it works: no conclusion is drawn from them. Published: tables 5 and 6, means of ten runs of 1 GB."}
	for _, g := range groups {
		row := []field{{text: g.name}}
		for _, pairs := range []int{1, 4} {
			row = append(row, groupCell(transfers, g.setting, g.transport, g.sides, pairs))
		}
		for i, v := range []float64{g.one, g.four} {
			p, _ := findTransfer(transfers, g.setting, g.transport, 0, []int{1, 4}[i])
			switch {
			case v == 0:
				row = append(row, reason("never measured"))
			case p != nil && p.Cell.Size != transferSize:
				row = append(row, reason(fmt.Sprintf("%s for 1 GB: not compared with %s", experiment.Quantity(v, experiment.Time), p.Cell.Size)))
			default:
				row = append(row, value("%s", experiment.Quantity(v, experiment.Time)))
			}
		}
		t.add(row...)
	}
	return t
}

// findTransfer returns the point of a group, or nil and why.
func findTransfer(figures []*Figure, setting, transport string, perSide, pairs int) (*Point, string) {
	why := "not in this run"
	is := func(p *Point) bool {
		return p.Cell.Setting == setting && p.Cell.Transport == transport && p.Cell.PerSide == perSide && p.Cell.Pairs == pairs
	}
	for _, f := range figures {
		for _, l := range f.Lines {
			for i := range l.Points {
				if is(&l.Points[i]) {
					return &l.Points[i], ""
				}
			}
		}
		for i := range f.Missing {
			if is(&f.Missing[i]) {
				why = short(f.Missing[i].Failed)
			}
		}
	}
	return nil, why
}

// groupCell returns a value, or why there is none. For several guests it prefers four a side, else two.
func groupCell(figures []*Figure, setting, transport string, sides, pairs int) field {
	if sides > 1 && pairs == 1 {
		return reason("not planned: each of the four has a transfer")
	}
	perSide := 0
	if sides > 1 {
		perSide = sides
	}
	p, why := findTransfer(figures, setting, transport, perSide, pairs)
	text := ""
	if p != nil {
		text = transferText(p)
	}
	if sides > 1 && setting == experiment.VMs {
		if two, _ := findTransfer(figures, setting, transport, 2, 2); two != nil {
			if text == "" {
				text = "four: " + why
			}
			text += "; two a side: " + transferText(two)
		}
	}
	if text == "" {
		return reason(why)
	}
	return value("%s", text)
}

// transferText formats a time, and the size if it is not the report's.
func transferText(p *Point) string {
	text := experiment.Quantity(p.Summary.Median, experiment.Time)
	if p.Cell.Size != transferSize {
		text += " for " + p.Cell.Size.String()
	}
	return text
}

// publishedTransfer returns the duration of a transfer in the progress report, in seconds; 0: not measured.
func publishedTransfer(setting, transport string, pairs int) float64 {
	for _, g := range groups {
		if g.setting == setting && g.transport == transport && g.sides == 1 {
			if pairs == 1 {
				return g.one
			}
			return g.four
		}
	}
	return 0
}

// transferRatios compares ratios with the report's. Its machines were different, so values cannot be compared.
func transferRatios(figures []Figure) *table {
	transfers := transfersOf(figures)
	if len(transfers) == 0 {
		return nil
	}
	t := &table{title: "The report's ratios", head: []string{"time of", "divided by time of", "transfers", "here", "published"},
		why: "Above 1: the first took longer. Machines differ, so ratios are compared and seconds are not. Guests are emulated here, and sent fewer bytes than hosts: the two are not divided by each other."}
	type side struct{ setting, transport, name string }
	hosts := func(transport, name string) side { return side{experiment.Hosts, transport, "host to host, " + name} }
	guests := func(transport, name string) side { return side{experiment.VMs, transport, "guest to guest, " + name} }
	containers := func(transport, name string) side {
		return side{experiment.Containers, transport, "container to container, " + name}
	}
	const tcp, verbs = experiment.TCP, experiment.Verbs
	for _, r := range []struct {
		a, b  side
		pairs int
	}{
		{hosts(tcp, "TCP"), hosts(verbs, "RDMA"), 1}, {hosts(tcp, "TCP"), hosts(verbs, "RDMA"), 4},
		{containers(tcp, "TCP"), containers(verbs, "RDMA"), 1}, {containers(tcp, "TCP"), containers(verbs, "RDMA"), 4},
		{guests(tcp, "TCP"), guests(verbs, "RDMA"), 1}, {guests(tcp, "TCP"), guests(verbs, "RDMA"), 4},
		{guests(verbs, "RDMA"), hosts(verbs, "RDMA"), 1}, {guests(verbs, "RDMA"), hosts(verbs, "RDMA"), 4},
		{guests(tcp, "TCP"), hosts(tcp, "TCP"), 1}, {guests(tcp, "TCP"), hosts(tcp, "TCP"), 4},
	} {
		here, there := reason(""), reason("never measured")
		a, why1 := findTransfer(transfers, r.a.setting, r.a.transport, 0, r.pairs)
		b, why2 := findTransfer(transfers, r.b.setting, r.b.transport, 0, r.pairs)
		switch {
		case a == nil:
			here.text = why1
		case b == nil:
			here.text = why2
		case a.Cell.Setting != b.Cell.Setting:
			here.text = "guests are emulated: no conclusion"
		default:
			here = value("%.2f", a.Summary.Median/b.Summary.Median)
			if a.Cell.Size != transferSize {
				here.text += " for " + a.Cell.Size.String()
			}
		}
		if a, b := publishedTransfer(r.a.setting, r.a.transport, r.pairs), publishedTransfer(r.b.setting, r.b.transport, r.pairs); a > 0 && b > 0 {
			there = value("%.2f", a/b)
		}
		t.add(field{text: r.a.name}, field{text: r.b.name}, field{text: fmt.Sprint(r.pairs)}, here, there)
	}
	return t
}
