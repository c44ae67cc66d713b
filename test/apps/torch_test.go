package apps

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// compileCC builds a C++ program of test/testdata with unpacked libraries.
func compileCC(t *testing.T, name, library string, headers ...string) string {
	t.Helper()
	args := []string{"-Wl,--allow-shlib-undefined"}
	for _, pack := range headers {
		args = append(args, "-isystem", filepath.Join(harness.Unpacked(t, pack), "usr/include"))
	}
	return harness.CompileFile(t, filepath.Join(harness.Root(), "test/testdata", name+".cc"), "g++", append(args, library)...)
}

// find returns the file of a pattern in an unpacked package.
func find(t *testing.T, pack, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(harness.Unpacked(t, pack), pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("package %s has no %s", pack, pattern)
	}
	return found[0]
}

// TestGloo: ranks of Gloo, PyTorch's collectives, sum vectors over its ibverbs transport, and every element is right.
func TestGloo(t *testing.T) {
	library := find(t, "libgloo0", "usr/lib/libgloo.so.0.*")
	program := compileCC(t, "gloo", library, "libgloo-dev")
	links := harness.Directory(t, nil) // what ldconfig would make
	if err := os.Symlink(library, filepath.Join(links, "libgloo.so.0")); err != nil {
		t.Fatal(err)
	}
	libs := libraries(t, "libhiredis0.14") + ":" + links
	places(t, func(t *testing.T, p place) {
		run := func(verbs bool) func(t *testing.T) float64 {
			return func(t *testing.T) float64 {
				dir := harness.Directory(t, nil)
				start := func(d *harness.Daemon, rank int) *harness.Process {
					transport, device := "ibverbs", "rxe0"
					if !verbs {
						transport, device = "tcp", "lo"
						if p.client != p.server {
							device = "eth0"
						}
					}
					argv := with([]string{libs}, program, transport, device, fmt.Sprint(rank), "2", dir, harness.Pick("20", "50"))
					if !verbs {
						argv = plain(argv...)
					}
					return d.Launch(t, argv...)
				}
				a, b := start(p.server, 0), start(p.client, 1)
				out := a.OK(t, 2*minute) + b.OK(t, 2*minute)
				if !strings.Contains(out, "ok rank 0 of 2") || !strings.Contains(out, "ok rank 1 of 2") {
					t.Errorf("want both ranks to report ok, got:\n%s", out)
				}
				return number(t, out, `262144 elements: (\S+) us`)
			}
		}
		p.compare(t, Row{
			Program: "Gloo " + packageVersion(t, "libgloo0"), Started: "vrdma run -- PROGRAM, transport ibverbs",
			What: "all-reduce of 1 MiB, 2 ranks", Unit: "µs", Lower: true, Checked: "every element",
		}, 100, run(true), run(false))
	})
}

// TestTensorPipe: two processes exchange tensors over TensorPipe's ibv transport, which carries PyTorch's RPC, and every byte is right.
func TestTensorPipe(t *testing.T) {
	libs := libraries(t, "libtensorpipe0", "libuv1")
	program := compileCC(t, "tensorpipe", find(t, "libtensorpipe0", "usr/lib/*-linux-gnu/libtensorpipe.so.0"), "libtensorpipe-dev", "libuv1-dev")
	places(t, func(t *testing.T, p place) {
		run := func(transport string) func(t *testing.T) float64 {
			return func(t *testing.T) float64 {
				url := filepath.Join(harness.Directory(t, nil), "url")
				start := func(d *harness.Daemon, side string) *harness.Process {
					argv := with([]string{libs}, program, transport, p.ip, url, harness.Pick("5", "20"), side)
					if transport != "ibv" {
						argv = plain(argv...)
					}
					return d.Launch(t, argv...)
				}
				server := start(p.server, "listen")
				if !harness.Poll(minute, func() bool {
					_, err := os.Stat(url)
					return err == nil || server.Ended(0)
				}) {
					t.Fatalf("no URL:\n%s", server.Output())
				}
				client := start(p.client, "connect")
				out := client.OK(t, 2*minute)
				server.OK(t, 2*minute)
				return number(t, out, `4194304 bytes: (\S+) us`)
			}
		}
		p.compare(t, Row{
			Program: "TensorPipe " + packageVersion(t, "libtensorpipe0"), Started: "vrdma run -- PROGRAM, transport ibv",
			What: "4 MiB there and back", Unit: "µs", Lower: true, Checked: "every byte",
		}, 100, run("ibv"), run("uv"))
	})
}
