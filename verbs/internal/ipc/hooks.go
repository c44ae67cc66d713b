package ipc

import "vrdma.dev/vrdma/internal/abi"

// These hooks let verbs/cm and verbs/stream use unexported parts of package verbs.
var (
	// Of returns the connection of a *verbs.Device.
	Of func(device any) Backend
	// Apply changes a *verbs.QP with attributes that rdma_cm computed.
	Apply func(qp any, a *abi.QPAttr) error
)
