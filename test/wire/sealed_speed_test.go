package wire

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// cpu is the processor time that the host's daemon has used, in hundredths of a second.
func (h *host) cpu(t *testing.T) (ticks int) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	for _, f := range strings.Fields(rest)[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return ticks
}

// tunnelDrops returns the drops of the host's tunnel, by reason.
func (h *host) tunnelDrops(t *testing.T) string {
	t.Helper()
	var all []string
	for name, n := range h.Status(t).Counters {
		if why, is := strings.CutPrefix(name, "overlay_tunnel_"); is && n > 0 {
			all = append(all, fmt.Sprint(why, " ", n))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// TestSealedSpeed prints what an encrypted network costs beside one that is not, between the same two
// hosts. It judges nothing: on a busy machine the figures mean little.
func TestSealedSpeed(t *testing.T) {
	if !harness.All() {
		return // a measurement, not a test
	}
	for _, mtu := range []int{1500, 9000} {
		w, nics := sealedLab(t, layout{mtu: mtu}, func(h *host) string { return h.ip4 })
		for range 2 {
			for _, name := range []string{"blue", "red"} {
				a, b := nics[name][0].side(), nics[name][1].side()
				before := [2]int{w.a.cpu(t), w.b.cpu(t)}
				server, client := workload.Perf("write_bw", "-D 3 -f 0 -s 65536").Start(t, a, b).OK(t, minute)
				if err := workload.CheckRows(client, server, 1); err != nil {
					t.Fatal(err)
				}
				row := workload.Rows(client)[0]
				speed, err := strconv.ParseFloat(row[3], 64)
				if err != nil {
					t.Fatal(err)
				}
				gb := speed * (1 << 20) * 3 / 1e9
				t.Logf("MTU %d %s write_bw 64 KiB: %.0f MiB/s, daemons' CPU %.0f + %.0f ms/GB", mtu, name, speed,
					float64(w.a.cpu(t)-before[0])*10/gb, float64(w.b.cpu(t)-before[1])*10/gb)
				t.Logf("dropped by the tunnels so far: %s; %s", w.a.tunnelDrops(t), w.b.tunnelDrops(t))
				_, client = workload.Perf("send_lat", "-s 64 -n 3000").Start(t, a, b).OK(t, minute)
				row = workload.Rows(client)[0]
				t.Logf("MTU %d %s send_lat 64 B: median %s µs, 99 %% %s µs", mtu, name, row[4], row[7])
			}
		}
	}
}
