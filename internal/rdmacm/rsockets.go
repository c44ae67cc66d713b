package rdmacm

import "vrdma/internal/abi"

// rsockets (librdmacm's sockets over RDMA) cuts every block that a program sends into messages of
// 2, 4, 8 … 64 KiB and what is left. To another host, packets of one length leave many in a call
// (GSO), and those of 2 KiB would end a run of packets of 4 KiB each time. With an MTU of 2048 all
// are of one length. A block of 128 KiB leaves in 2.4 messages through the network stack, not 4.3.
//
// It is told by the private data of its connection requests, struct rs_conn_data: version 1 and
// three reserved bytes. Whoever looks the same is a little slower or faster for it, and not wrong: the
// request says which MTU both sides have.
const (
	rsocketsData = 40
	rsocketsMTU  = 4 // 2048
)

// suitMTU is the MTU for a connection with this private data, if the NIC's is mtu.
func (id *ID) suitMTU(mtu uint8, private []byte) uint8 {
	if id.ps != abi.PSTCP || id.sgid == id.dgid || len(private) != rsocketsData ||
		private[0] != 1 || private[4]|private[5]|private[6] != 0 {
		return mtu
	}
	return min(mtu, rsocketsMTU)
}
