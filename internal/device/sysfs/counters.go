package sysfs

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/net/roce"
)

// A Counter is a counter file of the port. hw_counters has rxe's names and some others; counters has those of every InfiniBand port.
type Counter struct {
	Dir, Name string
	Value     uint64
}

// Directories of counters.
const (
	HWCounters   = "hw_counters"
	PortCounters = "counters"
)

// Counters returns the content of all counter files. port_*_data count in units of four bytes, as the specification requires. A
// counter that rxe does not have gets the name that another kernel driver uses, which dashboards know: mlx5, efa (retrans_pkts)
// or bnxt_re (rx_roce_*_pkts). Three are specific to vrdma: they show how losses between vrdma hosts were repaired.
func Counters(c nic.Counters, l roce.Counters) []Counter {
	return []Counter{
		{HWCounters, "sent_pkts", c.SentPackets},
		{HWCounters, "rcvd_pkts", c.RcvdPackets},
		{HWCounters, "duplicate_request", c.Duplicates},
		{HWCounters, "out_of_seq_request", c.OutOfSequence},
		{HWCounters, "rcvd_rnr_err", c.RcvdRNR},
		{HWCounters, "send_rnr_err", c.SentRNR},
		{HWCounters, "rcvd_seq_err", c.RcvdSequenceErr},
		{HWCounters, "ack_deferred", c.AckDeferred},
		{HWCounters, "retry_exceeded_err", c.RetryExceeded},
		{HWCounters, "retry_rnr_exceeded_err", c.RNRExceeded},
		{HWCounters, "completer_retry_err", c.Retries},
		{HWCounters, "send_err", c.SendErrors},
		{HWCounters, "link_downed", 0},
		{HWCounters, "rdma_sends", c.RDMASends},
		{HWCounters, "rdma_recvs", c.RDMARecvs},

		{HWCounters, "local_ack_timeout_err", c.Timeouts},
		{HWCounters, "retrans_pkts", c.Retransmitted},
		{HWCounters, "implied_nak_seq_err", c.ImplicitNaks},
		{HWCounters, "resp_remote_access_errors", c.AccessErrors},
		{HWCounters, "rx_icrc_encapsulated", l.BadICRC},
		{HWCounters, "rx_roce_error_pkts", l.Malformed},
		{HWCounters, "rx_roce_discard_pkts", c.Dropped + c.BadPKey + c.BadQKey + l.Strays + l.FromSelf + l.WrongPort},
		{HWCounters, "np_ecn_marked_roce_packets", l.RcvdMarked},
		{HWCounters, "np_cnp_sent", l.SentCNP},
		{HWCounters, "rp_cnp_handled", l.RcvdCNP},

		{HWCounters, "selective_repairs", c.Repairs},
		{HWCounters, "stashed_packets", c.Stashed},
		{HWCounters, "tail_probes", c.Probes},

		{PortCounters, "port_xmit_data", c.SentBytes / 4},
		{PortCounters, "port_rcv_data", c.RcvdBytes / 4},
		{PortCounters, "port_xmit_packets", c.SentPackets},
		{PortCounters, "port_rcv_packets", c.RcvdPackets},
		{PortCounters, "unicast_xmit_packets", c.SentPackets},
		{PortCounters, "unicast_rcv_packets", c.RcvdPackets},
		{PortCounters, "multicast_xmit_packets", l.SentMulticast},
		{PortCounters, "multicast_rcv_packets", l.RcvdMulticast},
		{PortCounters, "port_xmit_discards", l.SendFull + l.SendErrors + l.NoSource},
		{PortCounters, "port_xmit_wait", 0},
		{PortCounters, "port_rcv_errors", l.Malformed + l.BadICRC},
		{PortCounters, "port_rcv_constraint_errors", c.BadPKey},
		{PortCounters, "port_rcv_remote_physical_errors", 0},
		{PortCounters, "port_rcv_switch_relay_errors", 0},
		{PortCounters, "port_xmit_constraint_errors", 0},
		{PortCounters, "symbol_error", 0},
		{PortCounters, "link_error_recovery", 0},
		{PortCounters, "link_downed", 0},
		{PortCounters, "local_link_integrity_errors", 0},
		{PortCounters, "excessive_buffer_overrun_errors", 0},
		{PortCounters, "VL15_dropped", 0},
	}
}
