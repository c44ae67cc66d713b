package metrics

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/docs"
)

// TestReference: docs/reference/metrics.md has every metric that the page has.
func TestReference(t *testing.T) {
	src := world(3)
	src.PerNIC = true
	overlay := &page{}
	overlay.device(&Device{Name: "rxe0", Overlay: []Dropped{{Reason: "foreign_host"}}})

	type family struct {
		kind, help string
		labels     map[string]map[string]bool
	}
	families := map[string]*family{}
	label := regexp.MustCompile(`([a-z]+)="((?:[^"\\]|\\.)*)"`)
	now := ""
	for line := range strings.Lines(string(serve(t, src).Page()) + overlay.String()) {
		if m := familyLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			if now = m[2]; families[now] == nil {
				families[now] = &family{labels: map[string]map[string]bool{}}
			}
			if m[1] == "HELP" {
				families[now].help = m[3]
			} else {
				families[now].kind = m[3]
			}
			continue
		}
		for _, m := range label.FindAllStringSubmatch(line, -1) {
			if families[now].labels[m[1]] == nil {
				families[now].labels[m[1]] = map[string]bool{}
			}
			families[now].labels[m[1]][m[2]] = true
		}
	}

	enumerated := map[string]bool{"direction": true, "op": true, "class": true}
	var table, reasons strings.Builder
	for _, name := range slices.Sorted(maps.Keys(families)) {
		f := families[name]
		var labels []string
		for _, l := range slices.Sorted(maps.Keys(f.labels)) {
			values := strings.Join(slices.Sorted(maps.Keys(f.labels[l])), ", ")
			switch {
			case l == "le":
				continue
			case enumerated[l]:
				l += " (" + values + ")"
			case l == "reason" && name != "vrdma_overlay_dropped_total":
				fmt.Fprintf(&reasons, "| `%s` | %s |\n", name, values)
			}
			labels = append(labels, l)
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", name, f.kind, strings.Join(labels, ", "), f.help)
	}
	const head = "| metric | type | labels | |\n|---|---|---|---|\n"
	docs.CheckPart(t, "docs/reference/metrics.md", "metrics", head+table.String())
	docs.CheckPart(t, "docs/reference/metrics.md", "reasons", "| metric | reasons |\n|---|---|\n"+reasons.String())
}
