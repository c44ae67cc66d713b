package networks

import (
	"os"
	"testing"

	"vrdma/test/harness"
)

// The program, as make build makes it, stays small: etcd's client is the largest part of it.
func TestBinarySize(t *testing.T) {
	const most = 20_000_000
	harness.Build(t)
	info, err := os.Stat(harness.Binary())
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > most {
		t.Errorf("bin/vrdma has %d bytes, and may have %d: did a package come in that the linker cannot prune? go build -ldflags=-dumpdep shows which", info.Size(), most)
	}
}
