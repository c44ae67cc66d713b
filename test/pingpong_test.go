package test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// rdma-core's own examples connect in both directions and answer every message.
func TestPingpong(t *testing.T) {
	harness.Need(t, "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong")
	d := harness.Device(t)
	sizes := map[string][]int{
		"rc":  harness.Pick([]int{1, 4096, 1 << 20}, []int{1, 2, 63, 1024, 1025, 4096, 65536, 1 << 20}),
		"uc":  harness.Pick([]int{1, 4096, 1 << 18}, []int{1, 2, 63, 1024, 1025, 4096, 65536, 1 << 20}),
		"ud":  harness.Pick([]int{1, 2048}, []int{1, 2, 63, 1024, 2048, 4096}),
		"srq": harness.Pick([]int{1, 4096}, []int{1, 2, 63, 1024, 1025, 4096, 65536}),
	}
	for _, kind := range []string{"rc", "uc", "ud", "srq"} {
		for _, size := range sizes[kind] {
			for _, events := range []bool{false, true} {
				name := fmt.Sprintf("%s/%d", kind, size)
				args := []string{"-c", "-s", strconv.Itoa(size), "-n", "200", "-r", "100"}
				if events {
					name += "/events"
					args = append(args, "-e")
				}
				t.Run(name, func(t *testing.T) { pingpong(t, d, kind, 0, size, 200, args) })
			}
		}
	}
	t.Run("rc/ipv6", func(t *testing.T) { pingpong(t, d, "rc", 1, 4096, 1000, nil) })
	t.Run("rc/extended_post", func(t *testing.T) { pingpong(t, d, "rc", 0, 4096, 200, []string{"-N", "-n", "200"}) })
	t.Run("rc/mtu4096", func(t *testing.T) { pingpong(t, d, "rc", 0, 4096, 200, []string{"-m", "4096", "-n", "200"}) })
}

var pingpongIters = regexp.MustCompile(`(?m)^(\d+) iters in `)

func pingpong(t *testing.T, d *harness.Daemon, kind string, gid, size, iters int, args []string) {
	t.Helper()
	port := harness.FreePort(t)
	server := append([]string{"ibv_" + kind + "_pingpong", "-p", strconv.Itoa(port), "-g", strconv.Itoa(gid)}, args...)
	client := append(append([]string{}, server...), "127.0.0.1")
	// Each iteration carries one message each way.
	d.Carried(t, harness.Traffic{Bytes: uint64(2 * iters * size)}, func() {
		s, c := d.Pair(t, 3*minute, port, server, client)
		for who, out := range map[string]string{"server": s, "client": c} {
			m := pingpongIters.FindStringSubmatch(out)
			if m == nil {
				t.Errorf("%s printed no result, want %d iterations:\n%s", who, iters, out)
			} else if n, _ := strconv.Atoi(m[1]); n < iters {
				t.Errorf("%s made %d iterations, want %d:\n%s", who, n, iters, out)
			}
		}
	})
}
