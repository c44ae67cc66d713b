package rdmacm

import (
	"net/netip"
	"testing"

	"vrdma/internal/abi"
	"vrdma/internal/ib"
)

// TestRsocketsMTU: connections of rsockets to another host have an MTU of 2048 at most, others
// that of the NIC.
func TestRsocketsMTU(t *testing.T) {
	here, there := ib.GIDOf(netip.MustParseAddr("192.0.2.1")), ib.GIDOf(netip.MustParseAddr("192.0.2.2"))
	request := func(change func([]byte)) []byte {
		b := make([]byte, rsocketsData) // struct rs_conn_data
		b[0], b[1], b[3] = 1, 3, 128
		change(b)
		return b
	}
	same := func([]byte) {}
	for _, c := range []struct {
		name      string
		to        ib.GID
		ps        uint16
		private   []byte
		mtu, want uint8
	}{
		{"rsockets", there, abi.PSTCP, request(same), 5, 4},
		{"rsockets, small MTU", there, abi.PSTCP, request(same), 3, 3},
		{"rsockets, one host", here, abi.PSTCP, request(same), 5, 5},
		{"another port space", there, abi.PSIB, request(same), 5, 5},
		{"another version", there, abi.PSTCP, request(func(b []byte) { b[0] = 2 }), 5, 5},
		{"not reserved", there, abi.PSTCP, request(func(b []byte) { b[6] = 1 }), 5, 5},
		{"shorter", there, abi.PSTCP, request(same)[:39], 5, 5},
		{"none", there, abi.PSTCP, nil, 5, 5},
	} {
		id := &ID{sgid: here, dgid: c.to}
		id.ps = c.ps
		if got := id.suitMTU(c.mtu, c.private); got != c.want {
			t.Errorf("%s: MTU %d, want %d", c.name, got, c.want)
		}
	}
}
