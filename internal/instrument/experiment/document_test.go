package experiment

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const head = "apiVersion: vrdma.io/v1\nkind: Experiment\nmetadata: {name: a}\nspec:\n"

// The suites of vrdma can be parsed, and are the same after they were printed.
func TestSuites(t *testing.T) {
	all, err := Suites()
	if err != nil || len(all) == 0 {
		t.Fatalf("%d experiments: %v", len(all), err)
	}
	pairs := make(map[int]bool)
	for _, e := range all {
		text, err := e.Text()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(e.Source, text)
		if err != nil || !slices.Equal(again[0].Cells(), e.Cells()) {
			t.Errorf("%s is another one after it was printed: %v\n%s", e.Name, err, text)
		}
		if e.Spec.Title == "" || e.Spec.Why == "" {
			t.Errorf("%s has no title, or does not say why", e.Name)
		}
		// Suites of publications have five rounds, three with guests, one where only the port is queried.
		least := 5
		for _, c := range e.Cells() {
			switch tool, _ := FindTool(c.Tool); {
			case tool.Asks:
				least = 1
			case Guests(c.Setting) || c.Setting == GuestRXE:
				least = 3
			}
		}
		if e.Spec.Rounds < least && e.Spec.Suite != "quick" && e.Spec.Suite != "speed" {
			t.Errorf("%s has %d rounds, want %d at least", e.Name, e.Spec.Rounds, least)
		}
		for _, c := range e.Cells() {
			pairs[c.Pairs] = true
		}
	}
	for _, n := range []int{1, 2, 4, 8} {
		if !pairs[n] {
			t.Errorf("no suite has %d pairs", n)
		}
	}
}

func TestCells(t *testing.T) {
	list, err := Parse("a.yaml", []byte(head+`  settings: [host, hosts]
  transports: [tcp, verbs]
  tools: [ib_send_lat, ib_write_lat, tcp_lat, iperf3]
  sizes: [64, 4KiB]
  mtu: [1500, 9000]
  wait: [poll, event]
`))
	if err != nil {
		t.Fatal(err)
	}
	cells := list[0].Cells()
	counts := make(map[string]int)
	for _, c := range cells {
		counts[c.Tool]++
		switch tool, _ := FindTool(c.Tool); {
		case (c.Transport == TCP) != (c.Tool == "tcp_lat" || c.Tool == "iperf3"):
			t.Errorf("%v: no such tool over it", c)
		case c.Setting == Host && c.MTU != 0:
			t.Errorf("%v has an MTU", c)
		case c.Tool == "ib_write_lat" && c.Wait != Poll:
			t.Errorf("%v: it can only poll", c)
		case c.Transport == TCP && c.Wait != Event:
			t.Errorf("%v: socket programs sleep", c)
		case tool.sized != (c.Size != 0):
			t.Errorf("%v has a size, or has none", c)
		}
	}
	// Setting host, and hosts with two MTUs; two sizes; two ways to wait.
	want := map[string]int{"ib_send_lat": 12, "ib_write_lat": 6, "tcp_lat": 6, "iperf3": 3}
	for tool, n := range want {
		if counts[tool] != n {
			t.Errorf("%s has %d cells, want %d", tool, counts[tool], n)
		}
	}
}

// Only containers and guests have several on a side. Processors are limited only where programs run on this machine.
func TestSides(t *testing.T) {
	list, err := Parse("a.yaml", []byte(head+`  settings: [host, containers, vms]
  transports: [verbs]
  tools: [ib_write_bw]
  pairs: [1, 2]
  perSide: [1, 4]
  share: [100, 50]
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range list[0].Cells() {
		got = append(got, fmt.Sprintf("%s %d %d %d", c.Setting, c.Pairs, c.PerSide, c.Share))
	}
	slices.Sort(got)
	want := []string{
		"containers 1 0 0", "containers 2 0 0", "containers 4 4 0", "containers 8 4 0",
		"host 1 0 0", "host 1 0 50", "host 2 0 0", "host 2 0 50",
		"vms 1 0 0", "vms 2 0 0", "vms 4 4 0", "vms 8 4 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("cells are\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Atomics have one size. Only perftest's bandwidth tools have several queue pairs.
func TestQueuePairs(t *testing.T) {
	list, err := Parse("a.yaml", []byte(head+`  settings: [host]
  transports: [verbs, tcp]
  tools: [ib_write_bw, ib_atomic_bw, ib_atomic_lat, tcp_bw]
  sizes: [64, 4096]
  queuePairs: [1, 4]
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range list[0].Cells() {
		got = append(got, fmt.Sprintf("%s %d %d", c.Tool, c.Size, c.QPs))
	}
	slices.Sort(got)
	want := []string{"ib_atomic_bw 8 0", "ib_atomic_bw 8 4", "ib_atomic_lat 8 0", "ib_write_bw 4096 0", "ib_write_bw 4096 4", "ib_write_bw 64 0", "ib_write_bw 64 4",
		"tcp_bw 4096 0", "tcp_bw 64 0"}
	if !slices.Equal(got, want) {
		t.Errorf("cells are\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Errors have the line.
func TestRefused(t *testing.T) {
	good := head + "  settings: [host]\n  transports: [verbs]\n  tools: [ib_write_bw]\n"
	tests := []struct{ text, want string }{
		{"", "holds no experiment"},
		{"a: [", "did not find"},
		{strings.Replace(good, "v1", "v9", 1), `apiVersion is "vrdma.io/v9": this vrdma knows`},
		{strings.Replace(good, "Experiment", "NIC", 1), `kind is "NIC"`},
		{strings.Replace(good, "name: a", "name: A b", 1), `metadata.name is "A b"`},
		{good + "  colour: red\n", "line 8: field colour is not known"},
		{good + "  sizes: [64, 3furlongs]\n", `line 8: "3furlongs" is no size`},
		{good + "  sizes: [-1]\n", `is no size`},
		{good + "  sizes: [9999999999GiB]\n", `is no size`},
		{good + "  pairs: [0]\n", "spec.pairs: 0: want 1 to 64"},
		{good + "  mtu: [100]\n", "spec.mtu: 100"},
		{good + "  perSide: [17]\n", "spec.perSide: 17: want 1 to 16"},
		{good + "  pairs: [8]\n  perSide: [16]\n", "spec.pairs and spec.perSide: 128 pairs in all: want at most 64"},
		{good + "  queuePairs: [0]\n", "spec.queuePairs: 0: want 1 to 1024"},
		{good + "  delay: [soon]\n", `spec.delay: "soon": want a number with us or ms`},
		{good + "  share: [0]\n", "spec.share: 0: want 5 to 100"},
		{good + "  rounds: -1\n", "spec.rounds: -1"},
		{good + "  wait: [hope]\n", `spec.wait: "hope" is not known: choose among poll, event`},
		{strings.Replace(good, "ib_write_bw", "iperf9", 1), `spec.tools: "iperf9" is not known: choose among ib_send_bw`},
		{strings.Replace(good, "[verbs]", "[tcp]", 1), "nothing is left to measure: no tool of ib_write_bw works over tcp"},
		{strings.Replace(good, "[host]", "[]", 1), "spec.settings is empty"},
		{good + "---\n" + strings.Replace(good, "[host]", "[moon]", 1), `a.yaml:9: experiment a: spec.settings: "moon"`},
	}
	for _, test := range tests {
		_, err := Parse("a.yaml", []byte(test.text))
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "a.yaml") {
			t.Errorf("%q: %v; want %q", test.text, err, test.want)
		}
	}
}

func TestChoose(t *testing.T) {
	quick, err := Choose(nil)
	if err != nil || len(quick) == 0 || quick[0].Spec.Suite != "quick" {
		t.Errorf("nothing named: %v, %v", quick, err)
	}
	if one, err := Choose([]string{"quick-latency", "quick"}); err != nil || len(one) != len(quick) {
		t.Errorf("an experiment and its suite: %d, %v", len(one), err)
	}
	if _, err := Choose([]string{"thesys"}); err == nil || !strings.Contains(err.Error(), "vrdma bench list") {
		t.Errorf("no such thing: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "  settings: [host]\n  transports: [verbs]\n  tools: [ib_write_bw]\n  sizes: [1KiB]\n"))
	f.Add([]byte("---\n---\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := Parse("f", text)
		if err != nil {
			return
		}
		for _, e := range list {
			if n := len(e.Cells()); n == 0 || n > mostCells {
				t.Fatalf("%d cells", n)
			}
		}
	})
}
