package wire

import (
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestLibfabric: libfabric's verbs provider, by itself and below its layer of reliable
// datagrams, which makes completion queues of 262144 entries.
func TestLibfabric(t *testing.T) {
	harness.Need(t, "fi_pingpong")
	w := newLab(t, layout{mtu: 1500})
	w.a.NoLeaks(t)
	w.b.NoLeaks(t)
	for _, c := range []struct{ provider, endpoint string }{
		{"verbs", "msg"},
		{"verbs;ofi_rxm", "rdm"},
	} {
		t.Run(c.provider, func(t *testing.T) {
			port := harness.FreePort(t)
			tool := []string{"fi_pingpong", "-p", c.provider, "-e", c.endpoint, "-c", "-I", harness.Pick("20", "1000")}
			server := append(append([]string{}, tool...), "-B", strconv.Itoa(port))
			client := append(append([]string{}, tool...), "-P", strconv.Itoa(port), w.a.ip4)
			_, out := harness.Converse(t, port, w.a, server, w.b, client).OK(t, minute)
			if !strings.Contains(out, "1m ") {
				t.Errorf("want a line for messages of 1 MiB:\n%s", out)
			}
		})
	}
}
