package report

import (
	"path"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// cases are the six cases of MIKELANGELO D4.1 with its published values, and related ones. A value that D4.1 does not state is derived
// from two others, and the table says so.
var cases = []struct{ name, experiment, transport, tool, latency, bandwidth string }{
	{"h2h-verb-roce: host to host, MPI over verbs", "mikelangelo-netpipe", experiment.Verbs, "NPopenmpi", "1.4–2.2 µs", "100 % (40 GbE)"},
	{"h2h-sock-roce: host to host, MPI over TCP, same link", "mikelangelo-netpipe", experiment.TCP, "NPopenmpi", "", "20–25 % (derived)"},
	{"h2h-sock-eth: host to host, TCP, 1 Gb/s", "mikelangelo-ethernet", experiment.TCP, "NPopenmpi", "≈ 100 µs", "lowest"},
	{"vm2vm-rdma-p1: guests on two hosts, vhost-user and the link", "mikelangelo-guests-apart", experiment.Vhost, "NPtcp", "8.2–10.3 µs", "20–25 %"},
	{"vm2vm-vhost-shm: guests on one host, vhost-user", "mikelangelo-guests", experiment.Vhost, "NPtcp", "9.8–12.3 µs (derived)", "20–25 % (derived)"},
	{"… with Debian's OVS-DPDK instead of vrdma", "mikelangelo-guests", experiment.OVS, "NPtcp", "", ""},
	{"vm2vm-virtio-eth: guests, virtio-net and a bridge", "mikelangelo-guests", experiment.TCP, "NPtcp", "≈ 100 µs", "lowest"},
	{"prototype III: guests, sockets over verbs", "mikelangelo-guests", experiment.Sockets, "NPtcp", neverPublished, neverPublished},
	{"prototype III: guests on two hosts, sockets over verbs", "mikelangelo-guests-apart", experiment.Sockets, "NPtcp", neverPublished, neverPublished},
	{"prototype II: guests, verbs (ib_write_bw)", "mikelangelo-guests-verbs", experiment.Verbs, "ib_write_bw", neverPublished, neverPublished},
	{"prototype II: guests, verbs (ib_send_bw)", "mikelangelo-guests-verbs", experiment.Verbs, "ib_send_bw", neverPublished, neverPublished},
	{"prototype II: guests, verbs (ib_write_lat)", "mikelangelo-guests-verbs", experiment.Verbs, "ib_write_lat", neverPublished, neverPublished},
}

const neverPublished = "never published"

// casesTable has a value or a reason in every cell.
func casesTable(figures []Figure) *table {
	t := &table{title: "The six cases, and what belongs beside them", head: []string{"case", "latency", "bandwidth", "published: latency", "bandwidth"},
		why: "Latency of the smallest message and bandwidth of the largest, with their sizes. Derived: computed from values that D4.1 states; see the sources in docs/explanation/sources.md. Guests are emulated here and were not there: compare rows of guests with each other."}
	for _, c := range cases {
		row := []field{{text: c.name}}
		for _, metric := range []string{experiment.Latency, experiment.Bandwidth} {
			row = append(row, caseCell(figures, c.experiment, c.transport, c.tool, metric))
		}
		for _, text := range []string{c.latency, c.bandwidth} {
			if text == "" {
				row = append(row, reason("not said"))
			} else {
				row = append(row, field{text: text})
			}
		}
		t.add(row...)
	}
	return t
}

// caseCell returns the value of the smallest or the largest message, or why there is none.
func caseCell(figures []Figure, name, transport, tool, metric string) field {
	why, found := "not in this run", (*Point)(nil)
	if t, _ := experiment.FindTool(tool); !t.Gives(metric) {
		return reason("not a metric of " + tool)
	}
	for _, f := range figures {
		if f.Experiment.Name != name {
			continue
		}
		for _, p := range f.Missing {
			if p.Cell.Transport == transport && p.Cell.Tool == tool {
				why = short(p.Failed)
			}
		}
		if f.Metric != metric {
			continue
		}
		for _, l := range f.Lines {
			for i := range l.Points {
				p := &l.Points[i]
				if p.Cell.Transport != transport || p.Cell.Tool != tool {
					continue
				}
				if found == nil || metric == experiment.Latency && p.Cell.Size < found.Cell.Size || metric != experiment.Latency && p.Cell.Size > found.Cell.Size {
					found = p
				}
			}
		}
	}
	if found == nil {
		return reason(why)
	}
	return value("%s (%s)", experiment.Quantity(found.Summary.Median, metric), found.Cell.Size)
}

// short returns a reason without the arguments of the tool, so that reasons that differ only in a port are equal. It includes the last
// line that the tool printed.
func short(reason string) string {
	line, more, _ := strings.Cut(reason, "\n")
	line = strings.TrimSuffix(line, ":")
	command, why := line, ""
	if i := strings.LastIndex(line, ": "); i >= 0 {
		command, why = line[:i], line[i+2:]
	}
	words := strings.Fields(command)
	if why == "" || !slices.ContainsFunc(words[1:min(len(words), 3)], func(w string) bool { return strings.HasPrefix(w, "-") }) {
		return line // not a command
	}
	text := path.Base(words[0]) + ": " + why
	more, _, _ = strings.Cut(more, "\nits server said:")
	if said := more[strings.LastIndex(more, "\n")+1:]; said != "" && len(said) < 120 {
		text += ": " + said
	}
	return text
}
