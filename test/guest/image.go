package guest

import (
	"context"
	"sync"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/rxeguest"
	"vrdma.dev/vrdma/test/harness"
)

// image is the directory with vmlinux and initramfs, made once.
var image = sync.OnceValues(func() (string, error) { return rxeguest.Image(context.Background(), harness.Root()) })

// mustImage is image, or the end of the test.
func mustImage(t testing.TB) string {
	t.Helper()
	harness.Need(t, rxeguest.Tools...)
	dir, err := image()
	if err != nil {
		t.Fatalf("make the guest's image: %v", err)
	}
	return dir
}
