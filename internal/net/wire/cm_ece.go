package wire

// The vendor ID of enhanced connection establishment (ECE) uses formerly reserved bits (Linux's
// include/rdma/ibta_vol1_c12.h). The MAD's modifier has the vendor's options.
var (
	reqVendor     = field{5, 0, 24}
	repVendorHigh = field{15, 0, 8}
	repVendorMid  = field{19, 0, 8}
	repVendorLow  = field{23, 0, 8}
)

// VendorID returns the vendor ID.
func (r REQ) VendorID() uint32 { return reqVendor.get(r) }

// SetVendorID sets the vendor ID, 24 bits.
func (r REQ) SetVendorID(v uint32) { reqVendor.set(r, v) }

// VendorID returns the vendor ID.
func (p REP) VendorID() uint32 {
	return repVendorHigh.get(p)<<16 | repVendorMid.get(p)<<8 | repVendorLow.get(p)
}

// SetVendorID sets the vendor ID, 24 bits.
func (p REP) SetVendorID(v uint32) {
	repVendorHigh.set(p, v>>16&0xff)
	repVendorMid.set(p, v>>8&0xff)
	repVendorLow.set(p, v&0xff)
}
