package abi

import "unsafe"

// Struct is the set of types that Decode and Encode accept. It is closed on purpose: each member has only fixed-size integers,
// arrays of them and other members. (A test checks that there is no pointer and no implicit padding.) So any bytes are a valid
// value, and every byte of a value is defined.
type Struct interface {
	CmdHeader | ExCmdHeader | AsyncEvent | CompEvent |
		GetContext | GetContextResp | QueryDevice | QueryDeviceResp |
		ExQueryDevice | ExQueryDeviceResp | QueryPort | QueryPortResp |
		AllocPD | AllocPDResp | DeallocPD | RegMR | RegMRResp | DeregMR |
		AllocMW | AllocMWResp | DeallocMW |
		CreateCompChannel | CreateCompChannelResp | CreateCQ | ExCreateCQ |
		CreateCQResp | ExCreateCQResp | ResizeCQ | ResizeCQResp | ReqNotifyCQ |
		DestroyCQ | DestroyCQResp | WC |
		CreateAH | CreateAHResp | DestroyAH | AttachMcast |
		CreateQP | ExCreateQP | CreateQPResp | ExCreateQPResp | QueryQP |
		QueryQPResp | ModifyQP | ExModifyQP | ExModifyQPResp | DestroyQP |
		DestroyQPResp | PostSend | PostRecv | PostSRQRecv | PostSendResp |
		CreateSRQ | CreateXSRQ | CreateSRQResp | ModifySRQ | QuerySRQ |
		QuerySRQResp | DestroySRQ | DestroySRQResp |
		MMInfo | RxeCreateAHResp | RxeCreateCQResp | RxeResizeCQResp |
		RxeCreateQPResp | RxeCreateSRQResp | RxeModifySRQCmd |
		CMCmdHeader | CMCreateID | CMCreateIDResp | CMDestroyID | CMDestroyIDResp |
		CMBindIP | CMResolveIP | CMResolveRoute | CMQuery | CMQueryRouteResp |
		CMConnParam | CMUDParam | CMConnect | CMListen | CMAccept | CMReject |
		CMDisconnect | CMInitQPAttr | QPAttr | CMNotify | CMJoinIPMcast |
		CMGetEvent | CMEventResp | CMSetOption | CMMigrateID | CMMigrateResp |
		CMWriteCMEvent | CMBind | CMResolveAddr | CMQueryAddrResp | CMQueryPathResp | CMJoinMcast
}

// Size returns sizeof(T).
func Size[T Struct]() int {
	var v T
	return int(unsafe.Sizeof(v))
}

// Decode copies the beginning of b into v and reports whether b was long enough; missing bytes are zero. v never aliases b.
func Decode[T Struct](b []byte, v *T) bool {
	var zero T
	*v = zero
	return copy(bytes(v), b) == len(bytes(v))
}

// Encode appends v to b.
func Encode[T Struct](b []byte, v *T) []byte {
	return append(b, bytes(v)...)
}

// bytes returns a view of v. T has no pointers and no padding, so every byte may be read and written. The view does not outlive
// the caller's v.
func bytes[T Struct](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}
