package tenants

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"vrdma/test/harness"
)

// pingpong is what runs between two NICs, whose addresses are told by TCP on the host's loopback.
func pingpong(tcp int) (server, client []string) {
	server = []string{"ibv_rc_pingpong", "-g", "0", "-c", "-n", "500", "-p", strconv.Itoa(tcp)}
	return server, append(append([]string{}, server...), "127.0.0.1")
}

// Two tenants have the same addresses, and their programs run at the same time.
func TestTwoTenants(t *testing.T) {
	harness.Need(t, "ibv_rc_pingpong", "rping", "ib_send_bw", "ibv_devinfo")
	d := start(t, example(t))
	var running []*harness.Conversation
	for _, of := range []string{"red", "blue"} {
		tcp := harness.FreePort(t)
		server, client := pingpong(tcp)
		running = append(running, harness.Converse(t, tcp, d.at(of+"/web"), server, d.at(of+"/db"), client))
	}
	for _, c := range running {
		c.OK(t, minute)
	}
	out := d.at("red/slow").run(t, "ibv_devinfo", "-v")
	for _, want := range []string{"hca_id:\trxe0", "::ffff:10.1.0.3"} {
		if !strings.Contains(out, want) {
			t.Errorf("ibv_devinfo on red/slow: want %q in:\n%s", want, out)
		}
	}
	if n := strings.Count(out, "hca_id:"); n != 1 {
		t.Errorf("red/slow sees %d devices, want one:\n%s", n, out)
	}
	fmt.Sprint()
}
