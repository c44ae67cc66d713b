package devicetree

import (
	"vrdma/internal/link"
	"vrdma/internal/nic"
)

// A Counter is a file of the port: hw_counters has rxe's own names and a few more, counters
// those of every InfiniBand port.
type Counter struct {
	Dir, Name string
	Value     uint64
}

const (
	hwCounters   = "hw_counters"
	portCounters = "counters"
)

// Counters says which file shows what. port_*_data count in units of four
// bytes, as the specification and everybody who reads them have it. What rxe does not
// count has the name that another driver of the kernel's gives it, which dashboards know:
// mlx5's, efa's (retrans_pkts) or bnxt_re's (rx_roce_*_pkts). Three are ours alone: they tell
// how losses between vrdma hosts were repaired.
func Counters(c nic.Counters, l link.Counters) []Counter {
	return []Counter{
		{hwCounters, "sent_pkts", c.SentPackets},
		{hwCounters, "rcvd_pkts", c.RcvdPackets},
		{hwCounters, "duplicate_request", c.Duplicates},
		{hwCounters, "out_of_seq_request", c.OutOfSequence},
		{hwCounters, "rcvd_rnr_err", c.RcvdRNR},
		{hwCounters, "send_rnr_err", c.SentRNR},
		{hwCounters, "rcvd_seq_err", c.RcvdSequenceErr},
		{hwCounters, "ack_deferred", c.AckDeferred},
		{hwCounters, "retry_exceeded_err", c.RetryExceeded},
		{hwCounters, "retry_rnr_exceeded_err", c.RNRExceeded},
		{hwCounters, "completer_retry_err", c.Retries},
		{hwCounters, "send_err", c.SendErrors},
		{hwCounters, "link_downed", 0},
		{hwCounters, "rdma_sends", c.RDMASends},
		{hwCounters, "rdma_recvs", c.RDMARecvs},

		{hwCounters, "local_ack_timeout_err", c.Timeouts},
		{hwCounters, "retrans_pkts", c.Retransmitted},
		{hwCounters, "implied_nak_seq_err", c.ImplicitNaks},
		{hwCounters, "resp_remote_access_errors", c.AccessErrors},
		{hwCounters, "rx_icrc_encapsulated", l.BadICRC},
		{hwCounters, "rx_roce_error_pkts", l.Malformed},
		{hwCounters, "rx_roce_discard_pkts", c.Dropped + c.BadPKey + c.BadQKey + l.Strays + l.FromSelf},
		{hwCounters, "np_ecn_marked_roce_packets", l.RcvdMarked},
		{hwCounters, "np_cnp_sent", l.SentCNP},
		{hwCounters, "rp_cnp_handled", l.RcvdCNP},

		{hwCounters, "selective_repairs", c.Repairs},
		{hwCounters, "stashed_packets", c.Stashed},
		{hwCounters, "tail_probes", c.Probes},

		{portCounters, "port_xmit_data", c.SentBytes / 4},
		{portCounters, "port_rcv_data", c.RcvdBytes / 4},
		{portCounters, "port_xmit_packets", c.SentPackets},
		{portCounters, "port_rcv_packets", c.RcvdPackets},
		{portCounters, "unicast_xmit_packets", c.SentPackets},
		{portCounters, "unicast_rcv_packets", c.RcvdPackets},
		{portCounters, "multicast_xmit_packets", l.SentMulticast},
		{portCounters, "multicast_rcv_packets", l.RcvdMulticast},
		{portCounters, "port_xmit_discards", l.SendFull + l.SendErrors + l.NoSource},
		{portCounters, "port_xmit_wait", 0},
		{portCounters, "port_rcv_errors", l.Malformed + l.BadICRC},
		{portCounters, "port_rcv_constraint_errors", c.BadPKey},
		{portCounters, "port_rcv_remote_physical_errors", 0},
		{portCounters, "port_rcv_switch_relay_errors", 0},
		{portCounters, "port_xmit_constraint_errors", 0},
		{portCounters, "symbol_error", 0},
		{portCounters, "link_error_recovery", 0},
		{portCounters, "link_downed", 0},
		{portCounters, "local_link_integrity_errors", 0},
		{portCounters, "excessive_buffer_overrun_errors", 0},
		{portCounters, "VL15_dropped", 0},
	}
}
