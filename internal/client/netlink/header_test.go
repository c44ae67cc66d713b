package netlink

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every number of numbers.go is what the C header says under the name in its comment.
func TestHeader(t *testing.T) {
	source, err := os.ReadFile("numbers.go")
	if err != nil {
		t.Fatal(err)
	}
	var c strings.Builder
	c.WriteString("#include <stdio.h>\n#include <linux/netlink.h>\n#include <rdma/rdma_netlink.h>\nint main(void) {\n")
	want := map[string]string{}
	for line := range strings.Lines(string(source)) {
		if strings.Contains(line, "In no header of Debian 12") {
			// The machine's header may be this old.
			break
		}
		add(want, &c, line)
	}
	_, attrs, _ := strings.Cut(string(source), "// Attributes:")
	for line := range strings.Lines(attrs) {
		add(want, &c, line)
	}
	c.WriteString("return 0; }\n")
	if len(want) < 90 {
		t.Fatalf("%d constants found: does the expression still match?", len(want))
	}
	dir := t.TempDir()
	file, bin := filepath.Join(dir, "h.c"), filepath.Join(dir, "h")
	if err := os.WriteFile(file, []byte(c.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-o", bin, file).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if value != want[name] {
			t.Errorf("%s: C says %s, Go says %s", name, value, want[name])
		}
	}
}

var constant = regexp.MustCompile(`=\s*(\w+)\s*// ((?:RDMA|NLM|NLA)\w+)\s*$`)

func add(want map[string]string, c *strings.Builder, line string) {
	m := constant.FindStringSubmatch(line)
	if m == nil {
		return
	}
	var v int
	fmt.Sscanf(m[1], "%v", &v)
	want[m[2]] = fmt.Sprint(v)
	fmt.Fprintf(c, "printf(\"%s %%d\\n\", (int)(unsigned short)%s);\n", m[2], m[2])
}
