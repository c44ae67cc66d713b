package test

import (
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// UCX chooses its transports itself. Restricted to the device it must work, and the device's counters must show it.
func TestUCX(t *testing.T) {
	harness.Need(t, "ucx_perftest")
	d := harness.Device(t)
	tests := []struct{ name, args string }{
		{"tag_lat", "-t tag_lat -s 64"},
		{"tag_bw", "-t tag_bw -s 65536"},
		{"tag_bw_1m", "-t tag_bw -s 1048576"},
		{"put_lat", "-t ucp_put_lat -s 64"},
		{"put_bw", "-t ucp_put_bw -s 65536"},
		{"get", "-t ucp_get -s 65536"},
		{"am_bw", "-t ucp_am_bw -s 8192"},
		{"stream_bw", "-t stream_bw -s 8192"},
		{"fadd", "-t ucp_fadd -s 8"},
		{"cswap", "-t ucp_cswap -s 8"},
	}
	for _, tl := range []string{"rc_v", "ud_v"} {
		for _, c := range tests {
			t.Run(tl+"/"+c.name, func(t *testing.T) {
				iters := harness.Pick(200, 10000)
				args := c.args + " -n " + strconv.Itoa(iters) + " -w 10"
				d.Carried(t, harness.Traffic{Packets: uint64(iters)}, func() { ucx(t, d, tl, args) })
			})
		}
	}
	// The transport layer alone, without UCP's choices.
	for _, c := range []struct{ name, args string }{
		{"uct_am_short", "-t am_lat -D short -s 8 -x rc_verbs -d rxe0:1"},
		{"uct_put_zcopy", "-t put_bw -D zcopy -s 65536 -x rc_verbs -d rxe0:1"},
		{"uct_get_bcopy", "-t get -D bcopy -s 1024 -x rc_verbs -d rxe0:1"},
		{"uct_fadd", "-t fadd -D short -s 8 -x rc_verbs -d rxe0:1"},
		{"uct_ud_am", "-t am_bw -D bcopy -s 1024 -x ud_verbs -d rxe0:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d.Carried(t, harness.Traffic{Packets: 200}, func() { ucx(t, d, "", c.args+" -n 200 -w 10") })
		})
	}
}

// TestUCXAsleep runs UCX where it sleeps on its completion channels. UCX polls, arms and sleeps without another poll,
// so it relies on an event for a completion before the arm.
func TestUCXAsleep(t *testing.T) {
	harness.Need(t, "ucx_perftest")
	d := harness.Device(t)
	for _, tl := range []string{"rc_v", "ud_v"} {
		for _, args := range []string{"-t tag_lat -s 64", "-t tag_lat -s 65536", "-t tag_bw -s 4096", "-t tag_bw -s 262144", "-t ucp_am_lat -s 512"} {
			t.Run(tl+"/"+strings.ReplaceAll(args, " ", ""), func(t *testing.T) {
				iters := harness.Pick(500, 20000)
				d.Carried(t, harness.Traffic{Packets: uint64(iters)}, func() { ucx(t, d, tl, args+" -E sleep -w 10 -n "+strconv.Itoa(iters)) })
			})
		}
	}
}

func ucx(t *testing.T, d *harness.Daemon, tls, args string) {
	t.Helper()
	port := harness.FreePort(t)
	env := []string{"env", "UCX_LOG_LEVEL=warn", "UCX_NET_DEVICES=rxe0:1"}
	if tls != "" {
		env = append(env, "UCX_TLS="+tls)
	}
	server := append(append(env, "ucx_perftest", "-f", "-p", strconv.Itoa(port)), strings.Fields(args)...)
	client := append(append([]string{}, server...), "127.0.0.1")
	_, out := d.Pair(t, 3*minute, port, server, client)
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) >= 4 {
			if _, err := strconv.ParseFloat(f[1], 64); err == nil {
				return
			}
		}
	}
	t.Errorf("ucx_perftest %s with UCX_TLS=%s printed no result:\n%s", args, tls, out)
}

// Two ranks of Open MPI exchange and check data over the device.
func TestOpenMPI(t *testing.T) {
	harness.Need(t, "mpirun", "mpicc")
	prog := harness.CompileWith(t, "mpi", "mpicc")
	d := harness.Device(t)
	for _, tls := range []string{"rc_v,self", "ud_v,self"} {
		t.Run(tls, func(t *testing.T) {
			d.Carried(t, harness.Traffic{Bytes: 32 << 20}, func() {
				out := d.Run(t, 2*minute, "mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2",
					"--mca", "pml", "ucx", "--mca", "btl", "^openib,vader,tcp", "--mca", "osc", "ucx",
					"-x", "UCX_TLS="+tls, "-x", "UCX_NET_DEVICES=rxe0:1", "-x", "UCX_LOG_LEVEL=warn", prog)
				if !strings.Contains(out, "ok rank 0 of 2") || !strings.Contains(out, "ok rank 1 of 2") {
					t.Errorf("want both ranks to report ok, got:\n%s", out)
				}
			})
		})
	}
}
