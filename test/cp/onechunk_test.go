package cp

import (
	"path/filepath"
	"strconv"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestPublished: --chunks 1 speaks the published protocol, with itself and with C programs, as client and
// as server.
func TestPublished(t *testing.T) {
	d := here(t)
	d.NoLeaks(t)
	program := harness.CompileWith(t, "onechunk", "gcc", "-lrdmacm", "-libverbs")
	const size = 25 << 20 // goes as 10 + 10 + 5 MiB
	file := write(t, filepath.Join(t.TempDir(), "file"), content(size))

	dir := t.TempDir()
	s := d.serve(t, dir, "--chunks", "1", "--public", "--write")
	d.cp(t, "--chunks", "1", file, s.url("ours")).OK(t, minute)
	d.Carried(t, harness.Traffic{Bytes: size}, func() {
		d.Run(t, minute, program, "client", "127.0.0.1", strconv.Itoa(s.port), file)
	})
	s.Printed(t, "file: received", minute)
	same(t, filepath.Join(dir, "ours"), content(size))
	same(t, filepath.Join(dir, "file"), content(size))

	port, to := harness.FreePort(t), t.TempDir()
	theirs := d.Launch(t, program, "server", "127.0.0.1", strconv.Itoa(port), to)
	d.AwaitManaged(t, theirs, port)
	d.cp(t, "--chunks", "1", file, "rdma://127.0.0.1:"+strconv.Itoa(port)+"/").OK(t, minute)
	theirs.OK(t, minute)
	same(t, filepath.Join(to, "file"), content(size))
}
