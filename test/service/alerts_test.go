package service

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestAlerts runs the tests of the alert rules with promtool, and checks that every metric and every reason in them exists.
func TestAlerts(t *testing.T) {
	promtool := filepath.Join(harness.Unpacked(t, "prometheus"), "usr/bin/promtool")
	dir := filepath.Join(harness.Root(), "contrib/prometheus")
	if out, err := exec.Command(promtool, "test", "rules", filepath.Join(dir, "vrdma.test.yml")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	rules, err := os.ReadFile(filepath.Join(dir, "vrdma.rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := os.ReadFile(filepath.Join(harness.Root(), "docs/reference/metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`\b(?:vrdma|process|infiniband_hw|node_infiniband)_[a-z_]+`).FindAllString(string(rules), -1) {
		if !regexp.MustCompile(name + `\b`).Match(metrics) {
			t.Errorf("%s is no metric of the daemon", name)
		}
	}
	for _, m := range regexp.MustCompile(`(vrdma_\w+)\{reason=~"([^"]*)"`).FindAllStringSubmatch(string(rules), -1) {
		row := regexp.MustCompile("(?m)^\\| `" + m[1] + "` \\|( [a-z_]+,?)+ \\|$").Find(metrics)
		for reason := range strings.SplitSeq(m[2], "|") {
			if !regexp.MustCompile(`\b` + reason + `\b`).Match(row) {
				t.Errorf("%s has no reason %s: %s", m[1], reason, row)
			}
		}
	}
}
