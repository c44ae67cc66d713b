package ipc

import "vrdma.dev/vrdma/internal/abi"

// What package verbs lets its sisters do, and nobody else.
var (
	// Of is the door of a *verbs.Device.
	Of func(device any) Door
	// Apply changes a *verbs.QP by attributes that rdma_cm made.
	Apply func(qp any, a *abi.QPAttr) error
)
