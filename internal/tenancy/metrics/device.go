package metrics

// Device is the device's counters since the daemon started: of all NICs together, deleted ones included.
type Device struct {
	Name                 string // as programs see it
	SentBytes, RcvdBytes uint64
	// Counters are named as in hw_counters and counters below /sys/class/infiniband.
	Counters map[string]uint64
	// Overlay is the drops of virtual networks between hosts; empty: there are none. Beside it is the number of
	// answered ARP requests and neighbour solicitations.
	Overlay        []Dropped
	OverlayAnswers uint64
	// Faults are packets, messages and calls that failed on purpose, by action.
	Faults []Dropped
}

// families names the metric of each counter file. Counters of the kernel have node_exporter's names, without the prefix
// node_infiniband_; others have the prefix infiniband_hw_.
var families = []struct{ file, name, help string }{
	{"port_xmit_packets", "node_infiniband_port_packets_transmitted_total", "Packets sent."},
	{"port_rcv_packets", "node_infiniband_port_packets_received_total", "Packets received."},
	{"unicast_xmit_packets", "node_infiniband_unicast_packets_transmitted_total", "Unicast packets sent."},
	{"unicast_rcv_packets", "node_infiniband_unicast_packets_received_total", "Unicast packets received."},
	{"multicast_xmit_packets", "node_infiniband_multicast_packets_transmitted_total", "Multicast packets sent to other hosts."},
	{"multicast_rcv_packets", "node_infiniband_multicast_packets_received_total", "Multicast packets received from other hosts."},
	{"port_xmit_discards", "node_infiniband_port_discards_transmitted_total", "Packets that could not be sent."},
	{"port_rcv_errors", "node_infiniband_port_errors_received_total", "Packets received damaged or malformed."},
	{"port_rcv_constraint_errors", "node_infiniband_port_constraint_errors_received_total", "Packets received with a wrong P_Key."},
	{"duplicate_request", "node_infiniband_duplicate_requests_packets_total", "Duplicate requests received."},
	{"implied_nak_seq_err", "node_infiniband_implied_nak_seq_errors_total", "Responses that implied the loss of an earlier one."},
	{"local_ack_timeout_err", "node_infiniband_local_ack_timeout_errors_total", "Expired acknowledgement timers."},
	{"np_cnp_sent", "node_infiniband_np_cnp_packets_sent_total", "Congestion notifications sent."},
	{"np_ecn_marked_roce_packets", "node_infiniband_np_ecn_marked_roce_packets_received_total", "Receive buffers (merged by GRO) with the mark Congestion Experienced."},
	{"rp_cnp_handled", "node_infiniband_rp_cnp_packets_handled_total", "Congestion notifications received."},
	{"out_of_seq_request", "node_infiniband_out_of_sequence_packets_received_total", "Requests received out of order."},
	{"rcvd_seq_err", "node_infiniband_packet_sequence_errors_total", "Sequence error NAKs received."},
	{"rcvd_rnr_err", "node_infiniband_rnr_nak_retry_packets_received_total", "Receiver not ready NAKs received."},
	{"resp_remote_access_errors", "node_infiniband_resp_remote_access_errors_total", "Requests refused because of key, bounds or access rights."},
	{"rx_icrc_encapsulated", "node_infiniband_rx_icrc_encapsulated_errors_total", "Packets received with a wrong ICRC."},

	{"send_rnr_err", "infiniband_hw_send_rnr_err_total", "Receiver not ready NAKs sent."},
	{"ack_deferred", "infiniband_hw_ack_deferred_total", "ACKs deferred behind READ responses."},
	{"retry_exceeded_err", "infiniband_hw_retry_exceeded_err_total", "Queue pairs that exceeded their retry count."},
	{"retry_rnr_exceeded_err", "infiniband_hw_retry_rnr_exceeded_err_total", "Queue pairs that exceeded their RNR retry count."},
	{"completer_retry_err", "infiniband_hw_completer_retry_err_total", "Times a requester went back to an earlier packet."},
	{"send_err", "infiniband_hw_send_err_total", "Requests that could not be sent."},
	{"rdma_sends", "infiniband_hw_rdma_sends_total", "Messages sent, including retransmissions."},
	{"rdma_recvs", "infiniband_hw_rdma_recvs_total", "Receives completed."},
	{"retrans_pkts", "infiniband_hw_retrans_pkts_total", "Packets retransmitted."},
	{"rx_roce_error_pkts", "infiniband_hw_rx_roce_error_pkts_total", "Malformed packets received."},
	{"rx_roce_discard_pkts", "infiniband_hw_rx_roce_discard_pkts_total", "Well-formed packets received and dropped."},
	{"selective_repairs", "infiniband_hw_selective_repairs_total", "Gaps repaired by retransmitting only the missing packets."},
	{"stashed_packets", "infiniband_hw_stashed_packets_total", "Packets buffered because an earlier one was missing."},
	{"tail_probes", "infiniband_hw_tail_probes_total", "Packets retransmitted early to probe for a lost tail."},
}

// Dropped is the number of datagrams that were dropped for a reason.
type Dropped struct {
	Reason string
	Value  uint64
}

func (p *page) device(d *Device) {
	labels := []string{"device", d.Name, "port", "1"}
	p.family("node_infiniband_port_data_transmitted_bytes_total", "counter", "Bytes of payload sent.")
	p.sample(float64(d.SentBytes), labels...)
	p.family("node_infiniband_port_data_received_bytes_total", "counter", "Bytes of payload received.")
	p.sample(float64(d.RcvdBytes), labels...)
	for _, f := range families {
		p.family(f.name, "counter", f.help)
		p.sample(float64(d.Counters[f.file]), labels...)
	}
	if len(d.Overlay) > 0 {
		p.family("vrdma_overlay_dropped_total", "counter", "Datagrams of virtual networks that were dropped, by reason.")
		for _, c := range d.Overlay {
			p.sample(float64(c.Value), "reason", c.Reason)
		}
		p.family("vrdma_overlay_answers_total", "counter", "ARP and neighbour solicitations of Linux members that the daemon answered.")
		p.sample(float64(d.OverlayAnswers))
	}
	p.family("vrdma_faults_total", "counter", "Packets, messages and calls that failed on purpose, by action.")
	for _, c := range d.Faults {
		p.sample(float64(c.Value), "action", c.Reason)
	}
	p.family("node_infiniband_state_id", "gauge", "State of the port; 4 is active.")
	p.sample(4, labels...)
	p.family("node_infiniband_physical_state_id", "gauge", "Physical state of the port; 5 is link up.")
	p.sample(5, labels...)
}
