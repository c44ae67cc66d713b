package rxeguest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"vrdma.dev/vrdma/internal/instrument/cache"
)

// Tools are the programs that make and boot a guest.
var Tools = []string{
	"qemu-system-x86_64", "busybox", "cpio", "modprobe", "depmod", "xz", "dpkg-deb", "apt-get", "ip", "rdma",
	"ibv_rc_pingpong", "rping", "ib_write_bw", "qperf", "wg", "iperf3",
}

// Image returns the directory with vmlinux and initramfs, and makes them if necessary. The script that makes them is in the
// repository.
func Image(ctx context.Context, repository string) (string, error) {
	return cache.Fill("guest", func(dir string) error {
		agent := filepath.Join(dir, "agent")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", agent, "./test/guest/agent")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		script := filepath.Join("test", "guest", "image")
		for _, c := range []*exec.Cmd{build, exec.CommandContext(ctx, script, "fetch", dir), exec.CommandContext(ctx, script, "build", dir, agent)} {
			c.Dir = repository
			if out, err := c.CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w\n%s", c.Args, err, out)
			}
		}
		return nil
	})
}
