package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// A block is a code block of the page, which a reader types.
type block struct {
	line int // of the page
	text string
	// background is the port that the block listens on, as "tcp 18515". Such a block is started, and the next one runs
	// when the port is open. Empty: the block runs to its end.
	background string
	stop       bool // ends the previous block, which runs in the background, after this one
}

// parsePage finds the blocks of a page. Invisible comments control them: <!-- background: KIND PORT --> precedes a
// block that keeps running, <!-- stop --> stands where the reader ends it.
func parsePage(page string) (blocks []block, err error) {
	var open *block
	background := ""
	for i, line := range strings.Split(page, "\n") {
		n := i + 1
		switch trimmed := strings.TrimSpace(line); {
		case open != nil && trimmed == "```":
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(trimmed, "```"):
			if trimmed != "```sh" {
				return nil, fmt.Errorf("line %d: %s: a block of the page has to be sh, so that it is run", n, trimmed)
			}
			open = &block{line: n, background: background}
			background = ""
		case strings.HasPrefix(trimmed, "<!-- background: "):
			background = strings.TrimSuffix(strings.TrimPrefix(trimmed, "<!-- background: "), " -->")
		case trimmed == "<!-- stop -->":
			if len(blocks) == 0 {
				return nil, fmt.Errorf("line %d: nothing to stop", n)
			}
			blocks[len(blocks)-1].stop = true
		case trimmed != "" && background != "":
			return nil, fmt.Errorf("line %d: a block was to follow the comment", n)
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block has no end", open.line)
	}
	return blocks, nil
}

// prelude is the start of the script: functions to wait for a server and to end one.
const prelude = `set -euo pipefail
ip link set lo up
await() { # KIND PORT
	for i in $(seq 1200); do
		case $1 in
		tcp) ss -Htln "sport = :$2" | grep -q . && return ;;
		rdma) vrdma status 2>/dev/null | grep -q ":$2 .*LISTEN\|LISTEN.*:$2\b" && return ;;
		esac
		kill -0 $server 2>/dev/null || break
		sleep 0.05
	done
	echo "=== the server does not listen at $1 $2:"; cat "$out"; exit 1
}
finish() {
	wait $server || { echo "=== the server failed:"; cat "$out"; exit 1; }
	cat "$out"
}
end() {
	kill -TERM -- -$server
	wait $server || true
	cat "$out"
}
`

// script is a shell script that does what a reader does, in order.
func script(blocks []block, dir string) (string, error) {
	var b strings.Builder
	b.WriteString(prelude)
	var server *block
	for i := range blocks {
		bl := &blocks[i]
		fmt.Fprintf(&b, "echo '=== line %d'\n", bl.line)
		if bl.background != "" {
			if server != nil {
				return "", fmt.Errorf("line %d: a second server while that of line %d runs", bl.line, server.line)
			}
			server = bl
			file := filepath.Join(dir, fmt.Sprintf("block%d", bl.line))
			fmt.Fprintf(&b, "cat > %s <<'END OF BLOCK'\nset -e\n%sEND OF BLOCK\n", file, bl.text)
			// In its own session, so that the test can end all of it.
			fmt.Fprintf(&b, "out=%s.out\nsetsid bash %s > $out 2>&1 & server=$!\nawait %s\n", file, file, bl.background)
			continue
		}
		b.WriteString(bl.text)
		if server != nil {
			if bl.stop {
				b.WriteString("end\n")
			} else {
				b.WriteString("finish\n")
			}
			server = nil
		}
	}
	if server != nil {
		return "", fmt.Errorf("line %d: nobody uses the server", server.line)
	}
	b.WriteString("vrdma stop || true\necho '=== the end'\n")
	return b.String(), nil
}

// TestPage runs every command of docs/tutorials/lab.md in the page's order, with shorter times and fewer operations. It
// runs in its own namespaces, where the page's ports are free.
func TestPage(t *testing.T) {
	harness.Need(t, "sockperf", "ib_send_bw", "cpulimit", "ss", "unshare", "setsid")
	harness.Build(t)
	page, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "tutorials", "lab.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := parsePage(string(page))
	if err != nil {
		t.Fatal(err)
	}
	dir := harness.Directory(t, nil)
	text, err := script(blocks, dir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "page")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	argv := []string{"unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Geteuid() != 0 {
		argv = append(argv, "--map-root-user")
	}
	cmd := exec.Command(argv[0], append(argv[1:], "bash", file)...)
	cmd.Dir = harness.Root()
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "VRDMA_") && !strings.HasPrefix(v, "XDG_RUNTIME_DIR=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	operations := harness.Pick(300, 100_000)
	cmd.Env = append(cmd.Env, "XDG_RUNTIME_DIR="+dir, "XDG_STATE_HOME="+dir, "D="+filepath.Join(dir, "lab"),
		fmt.Sprintf("T=%d", harness.Pick(1, 5)), fmt.Sprintf("N=%d", operations), "P="+harness.Pick("2", "1 2 4"), "F="+harness.Pick("25M", "200M"))
	p := harness.Spawn(t, cmd)
	out := p.OK(t, harness.Pick(4*minute, 15*minute)) // one minute on an idle machine
	for _, want := range []string{
		"rxe0", "connection went over RDMA, none over TCP", "Summary: Latency is", "Send BW Test", "RDMA_Write BW Test", "Send Latency Test",
		"2 pairs: ", fmt.Sprintf("%d one-sided reads: ", operations), fmt.Sprintf("handled %d messages", 2*operations+2),
		fmt.Sprintf("For %d one-sided reads the server handled no message at all.", operations), "serving at 127.0.0.1:7472", "=== the end",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("nobody says %q", want)
		}
	}
	if t.Failed() || testing.Verbose() {
		t.Log(out)
	}
}

// TestParsePage: errors of a page name the line.
func TestParsePage(t *testing.T) {
	blocks, err := parsePage("text\n<!-- background: tcp 1 -->\n```sh\na\n```\nmore\n```sh\nb\nc\n```\n<!-- stop -->\n")
	want := []block{{line: 3, text: "a\n", background: "tcp 1"}, {line: 7, text: "b\nc\n", stop: true}}
	if err != nil || len(blocks) != 2 || blocks[0] != want[0] || blocks[1] != want[1] {
		t.Errorf("got %+v, %v, want %+v", blocks, err, want)
	}
	for _, page := range []string{"```\na\n```\n", "```sh\na\n", "<!-- stop -->\n", "<!-- background: tcp 1 -->\ntext\n```sh\na\n```\n"} {
		if blocks, err := parsePage(page); err == nil {
			t.Errorf("%q: %+v", page, blocks)
		}
	}
	for _, page := range []string{"<!-- background: tcp 1 -->\n```sh\na\n```\n", "<!-- background: tcp 1 -->\n```sh\na\n```\n<!-- background: tcp 2 -->\n```sh\na\n```\n"} {
		blocks, err := parsePage(page)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := script(blocks, "/dir"); err == nil {
			t.Errorf("%q: %s", page, s)
		}
	}
}
