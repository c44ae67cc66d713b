package show

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// The output for people has aligned columns and a bounded number of lines.
func TestPrintStatus(t *testing.T) {
	many := make([]protocol.PeerStatus, 53)
	for i := range many {
		many[i] = protocol.PeerStatus{Address: fmt.Sprintf("192.0.2.%d", i), Kind: "foreign"}
	}
	for _, c := range []struct {
		name         string
		status       protocol.Status
		want, absent []string
	}{
		{name: "nothing", want: []string{"sessions  none"}, absent: []string{"connections", "peer hosts", "counters", "more", "audit", "usage"}},
		{
			name: "files", status: protocol.Status{Audit: "/x/a.audit", Usage: "/x/a.usage"},
			want: []string{"audit log  /x/a.audit\nusage      /x/a.usage\nsessions   none\n"},
		},
		{
			name: "counters", // the kernel counts data in words
			status: protocol.Status{Counters: map[string]uint64{
				"port_xmit_data": 512, "port_rcv_data": 3 << 20, "port_xmit_packets": 7, "retry_exceeded_err": 0,
			}},
			want: []string{"\ncounters\n" +
				"        port_rcv_data  3145728  words of 4 bytes: 12.0 MiB\n" +
				"       port_xmit_data      512  words of 4 bytes: 2.0 KiB\n" +
				"    port_xmit_packets        7\n"}, absent: []string{"retry"},
		},
		{
			name: "connections",
			status: protocol.Status{Connections: []protocol.ConnectionStatus{
				{PortSpace: "TCP", Local: "0.0.0.0:7471", State: "LISTEN", Program: "rping", Pid: 7},
				{PortSpace: "UDP", Local: "192.0.2.1:9", Remote: "192.0.2.2:10", State: "ESTABLISHED", Pid: 8, QPN: 17, RemoteQPN: 18, Groups: 2},
			}},
			want: []string{"\nconnections\n" +
				"  TCP  0.0.0.0:7471  -             LISTEN       rping, pid 7\n" +
				"  UDP  192.0.2.1:9   192.0.2.2:10  ESTABLISHED  ?, pid 8, QP 0x000011 -> 0x000012, 2 multicast groups\n"},
		},
		{
			name: "peers",
			status: protocol.Status{Peers: []protocol.PeerStatus{
				{Address: "192.0.2.1", Kind: "vrdma", Version: "1.2", Features: []string{"a", "b"}}, {Address: "2001:db8::1", Kind: "foreign"},
			}},
			want: []string{"\npeer hosts\n" +
				"  192.0.2.1    vrdma 1.2  a, b\n" +
				"  2001:db8::1  foreign    \n"},
		},
		{
			name: "many", status: protocol.Status{Peers: many},
			want: []string{"  192.0.2.49  foreign  \n  ... and 3 more (-o json lists all)\n"}, absent: []string{"192.0.2.50"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			if err := Status(&b, &c.status, time.Now()); err != nil {
				t.Fatal(err)
			}
			for _, text := range c.want {
				if !strings.Contains(b.String(), text) {
					t.Errorf("want %q in\n%s", text, b.String())
				}
			}
			for _, text := range c.absent {
				if strings.Contains(b.String(), text) {
					t.Errorf("want no %q in\n%s", text, b.String())
				}
			}
		})
	}
}

func TestNearLimit(t *testing.T) {
	all := []protocol.BudgetStatus{{Whose: "a", Used: 4, Limit: 10}, {Whose: "b", Used: 5, Limit: 10}, {Whose: "c", Used: 10, Limit: 10}}
	got := nearLimit(all)
	if len(got) != 2 || got[0].Whose != "b" || got[1].Whose != "c" {
		t.Errorf("got %v, want b and c", got)
	}
}
