package manpage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/buildinfo"
)

func tree() *cobra.Command {
	root := &cobra.Command{Use: "tool", Short: "does it", Long: "Does it.\n\n  tool run -- x\n.dot\n'quote \\n"}
	root.PersistentFlags().String("socket", "", "the `PATH`")
	run := &cobra.Command{Use: "run", Short: "runs", Run: func(*cobra.Command, []string) {}, Example: "  tool run"}
	run.Flags().IntP("count", "n", 3, "how often")
	root.AddCommand(run, &cobra.Command{Use: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}})
	return root
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := Write(tree(), buildinfo.Info{Version: "v1", Date: "2026-01-02T03:04:05Z"}, dir); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(dir + "/*")
	if len(files) != 2 {
		t.Fatalf("got %v, want tool.1 and tool-run.1", files)
	}
	page, err := os.ReadFile(filepath.Join(dir, "tool-run.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`.TH "TOOL\-RUN" 1 "2026\-01\-02" "vrdma v1"`, ".B \\-n, \\-\\-count int\nhow often (default 3)\n", "\\-\\-socket PATH", ".BR tool (1)\n"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("tool-run.1 lacks %q:\n%s", want, page)
		}
	}
}

// No line of a help text is a request to the formatter.
func TestEscape(t *testing.T) {
	page := string(Page(tree(), buildinfo.Info{}))
	for _, want := range []string{"\n\\&.dot\n", "\n\\&'quote \\en\n", "\n  tool run \\-\\- x\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}
